// Which tokens of a chat hold what is learned. A tokenizer gives ids and no places, so each token's own text is found
// in the chat's text, one behind the other; every token must be found, so the places are certain.
#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "text/chat_template.h"
#include "text/jinja/lexer.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

constexpr std::string_view kMetaspace = "\xe2\x96\x81";  // U+2581, sentencepiece's blank

// What a token may stand for in the text, by its spelling: bytes of GPT-2's alphabet, a piece of sentencepiece, a
// byte of one, or itself.
std::vector<std::string> readings_of(const std::string& spelling, const ByteAlphabet& alphabet) {
  std::vector<std::string> out;
  if (auto bytes = alphabet.bytes(spelling)) out.push_back(*bytes);
  if (spelling.find(kMetaspace) != std::string::npos) {
    std::string piece = spelling;
    for (size_t at = 0; (at = piece.find(kMetaspace, at)) != std::string::npos; ++at)
      piece.replace(at, kMetaspace.size(), " ");
    out.push_back(piece);
    if (piece.starts_with(' ')) out.push_back(piece.substr(1));  // the blank that is put in front of a text
  }
  unsigned byte = 0;
  if (spelling.size() == 6 && spelling.starts_with("<0x") && spelling.back() == '>' &&
      std::from_chars(spelling.data() + 3, spelling.data() + 5, byte, 16).ptr == spelling.data() + 5)
    out.insert(out.begin(), std::string(1, static_cast<char>(byte)));
  out.push_back(spelling);
  return out;
}

const std::string* reading_at(const std::vector<std::string>& readings, std::string_view rest) {
  for (const std::string& reading : readings) {
    if (rest.starts_with(reading) && (!reading.empty() || readings.size() == 1)) return &reading;
  }
  // The blank in front of a text may be the whole token.
  const auto blank = std::find(readings.begin(), readings.end(), "");
  return blank != readings.end() ? &*blank : nullptr;
}

}  // namespace

ChatTokens chat_tokens(const Tokenizer& tokenizer, const ChatText& chat) {
  static const ByteAlphabet kAlphabet;
  ChatTokens out;
  out.ids = tokenizer.encode(chat.text);
  out.learned.assign(out.ids.size(), 0);
  if (chat.learned.empty()) return out;
  size_t at = 0;
  auto range = chat.learned.begin();
  for (size_t i = 0; i < out.ids.size(); ++i) {
    const std::string spelling = tokenizer.id_to_token(out.ids[i]);
    const std::vector<std::string> readings = readings_of(spelling, kAlphabet);
    const std::string_view rest = std::string_view(chat.text).substr(at);
    const std::string* reading = reading_at(readings, rest);
    const bool between = rest.empty() || (static_cast<unsigned char>(rest[0]) & 0xc0) != 0x80;
    if (reading == nullptr && between) {  // an added token may have taken the white space before it
      at = chat.text.size() - jinja::without_leading_space(rest).size();
      reading = reading_at(readings, std::string_view(chat.text).substr(at));
    }
    MPX_CHECK(reading != nullptr, "text", "token ", i, " of a chat, '", spelling,
              "', is not what its text goes on with at byte ", at,
              ": this tokenizer changes text, so which tokens are the assistant's cannot be told");
    const size_t end = at + reading->size();
    while (range != chat.learned.end() && range->second <= at) ++range;
    out.learned[i] = range != chat.learned.end() && range->first < end;
    at = end;
  }
  return out;
}

}  // namespace metroplex::text

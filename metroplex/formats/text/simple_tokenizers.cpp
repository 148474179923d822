#include "text/simple_tokenizers.h"

#include <charconv>
#include <cstdio>

#include "base/error.h"
#include "files/json_text.h"

namespace metroplex::text {

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids(text.size());
  for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
  return ids;
}

LocatedIds ByteTokenizer::encode_with_ranges(std::string_view text) const {
  LocatedIds located{encode(text), {}};
  for (size_t at = 0; at < text.size(); ++at) located.ranges.push_back({at, at + 1});
  return located;
}

std::string ByteTokenizer::decode(const std::vector<int32_t>& ids) const {
  std::string out;
  for (const int32_t id : ids) {
    if (id >= 0 && id < 256) out += static_cast<char>(id);
  }
  return out;
}

std::string ByteTokenizer::id_to_token(int32_t id) const {
  if (id == 256) return "<eod>";
  if (id < 0 || id > 256) return "";
  char name[8];
  std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(id));
  return name;
}

std::optional<int32_t> ByteTokenizer::token_to_id(std::string_view token) const {
  for (int32_t id = 0; id <= 256; ++id) {
    if (id_to_token(id) == token) return id;
  }
  return std::nullopt;
}

NullTokenizer::NullTokenizer(int64_t vocab_size) : vocab_size_(vocab_size) {
  MPX_CHECK(vocab_size > 0 && vocab_size <= int64_t{1} << 31, "text", "the vocabulary size ", vocab_size,
            " is not in [1, 2^31]");
}

std::vector<int32_t> NullTokenizer::encode(std::string_view text) const { return encode_with_ranges(text).ids; }

LocatedIds NullTokenizer::encode_with_ranges(std::string_view text) const {
  constexpr std::string_view kSpace = " \t\r\n";
  LocatedIds located;
  for (size_t begin = text.find_first_not_of(kSpace); begin < text.size();
       begin = text.find_first_not_of(kSpace, begin)) {
    const size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
    int64_t id = -1;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, id);
    MPX_CHECK(error == std::errc() && stop == text.data() + end && id >= 0 && id < vocab_size_, "text", "'",
              files::printable(text.substr(begin, std::min<size_t>(end - begin, 40))), "' at byte ", begin,
              " is not an id in [0, ", vocab_size_, ")");
    located.ids.push_back(static_cast<int32_t>(id));
    located.ranges.push_back({begin, end});
    begin = end;
  }
  return located;
}

std::string NullTokenizer::decode(const std::vector<int32_t>& ids) const {
  std::string out;
  for (const int32_t id : ids) {
    if (!out.empty()) out += ' ';
    out += std::to_string(id);
  }
  return out;
}

std::string NullTokenizer::id_to_token(int32_t id) const {
  return id >= 0 && id < vocab_size_ ? std::to_string(id) : "";
}

std::optional<int32_t> NullTokenizer::token_to_id(std::string_view token) const {
  int64_t id = -1;
  const auto [stop, error] = std::from_chars(token.data(), token.data() + token.size(), id);
  if (error != std::errc() || stop != token.data() + token.size() || id < 0 || id >= vocab_size_) return std::nullopt;
  return static_cast<int32_t>(id);
}

}  // namespace metroplex::text

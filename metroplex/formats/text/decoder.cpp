#include "text/decoder.h"

#include <memory>

#include "text/normalizer.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

using Tokens = std::vector<std::string>;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Returns the byte of "<0xNN>", -1 for any other token.
int parse_byte_token(const std::string& token) {
  if (token.size() != 6 || token.compare(0, 3, "<0x") != 0 || token[5] != '>') return -1;
  if (token[3] == '+') return hex_digit(token[4]);
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// Decodes a run of byte tokens to text. If the run is not valid UTF-8, each byte becomes U+FFFD.
Tokens join_byte_tokens(const Tokens& tokens) {
  Tokens out;
  std::string run;
  const auto flush = [&] {
    if (valid_utf8_prefix(run) == run.size()) {
      out.push_back(run);
    } else {
      std::string bad;
      for (size_t i = 0; i < run.size(); ++i) bad += "\xEF\xBF\xBD";
      out.push_back(bad);
    }
    run.clear();
  };
  for (const std::string& token : tokens) {
    const int byte = parse_byte_token(token);
    if (byte >= 0) {
      run += static_cast<char>(byte);
      continue;
    }
    if (!run.empty()) flush();
    out.push_back(token);
  }
  if (!run.empty()) flush();
  return out;
}

std::string strip_ends(const std::string& token, const std::string& content, int64_t start, int64_t stop) {
  size_t begin = 0, end = token.size();
  for (int64_t i = 0; i < start && token.compare(begin, content.size(), content) == 0 && begin < end; ++i)
    begin += content.size();
  for (int64_t i = 0; i < stop && end >= begin + content.size(); ++i) {
    if (token.compare(end - content.size(), content.size(), content) != 0) break;
    end -= content.size();
  }
  return token.substr(begin, end - begin);
}

std::string replace_mark(const std::string& token, const std::string& mark, bool drop) {
  std::string out;
  size_t done = 0;
  for (size_t at; (at = token.find(mark, done)) != std::string::npos; done = at + mark.size()) {
    out.append(token, done, at - done);
    if (!drop) out += ' ';
  }
  return out.append(token, done);
}

}  // namespace

Decoder::Decoder(const JsonPart& part) { add(part, 0); }

Decoder Decoder::byte_level() {
  Decoder result;
  result.add_byte_level();
  return result;
}

void Decoder::add_byte_level() {
  const auto alphabet = std::make_shared<const ByteAlphabet>();
  steps_.push_back([alphabet](Tokens tokens, RegexScratch&) {
    std::string bytes;
    for (const std::string& token : tokens) bytes += alphabet->bytes(token).value_or(token);
    return Tokens{replace_invalid_utf8(bytes)};
  });
}

void Decoder::add(const JsonPart& part, int depth) {
  if (part.is_null()) return;
  part.check(depth <= kMaxSequenceDepth, "Sequence is nested more than ", kMaxSequenceDepth, " levels deep");
  const std::string type = part.type();
  if (type == "Sequence") {
    for (const JsonPart& item : part.member("decoders").items()) add(item, depth + 1);
  } else if (type == "ByteLevel") {
    add_byte_level();
  } else if (type == "ByteFallback") {
    steps_.push_back([](Tokens tokens, RegexScratch&) { return join_byte_tokens(tokens); });
  } else if (type == "Fuse") {
    steps_.push_back([](Tokens tokens, RegexScratch&) {
      std::string all;
      for (const std::string& token : tokens) all += token;
      return Tokens{all};
    });
  } else if (type == "Replace") {
    steps_.push_back([replace = make_replace(part)](Tokens tokens, RegexScratch& scratch) {
      for (std::string& token : tokens) token = replace(token, scratch, nullptr);
      return tokens;
    });
  } else if (type == "Strip") {
    const std::string content = part.string("content");
    part.check(!content.empty() && content.size() == code_point_size(static_cast<unsigned char>(content[0])),
               "content must be one character");
    const int64_t start = part.integer("start", 0, INT32_MAX), stop = part.integer("stop", 0, INT32_MAX);
    steps_.push_back([=](Tokens tokens, RegexScratch&) {
      for (std::string& token : tokens) token = strip_ends(token, content, start, stop);
      return tokens;
    });
  } else if (type == "Metaspace") {
    const std::string mark = part.string("replacement", "\xE2\x96\x81");
    part.check(!mark.empty(), "replacement is empty");
    const bool prefixed =
        part.string("prepend_scheme", part.flag("add_prefix_space", true) ? "always" : "never") != "never";
    steps_.push_back([=](Tokens tokens, RegexScratch&) {
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = replace_mark(tokens[i], mark, i == 0 && prefixed);
      return tokens;
    });
  } else {
    part.check(false, "decoder '", type,
               "' is not supported; use ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace or Sequence");
  }
}

std::string Decoder::decode(std::vector<std::string> tokens, RegexScratch& scratch) const {
  for (const Step& step : steps_) tokens = step(std::move(tokens), scratch);
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && steps_.empty()) out += ' ';
    out += tokens[i];
  }
  return out;
}

}  // namespace metroplex::text

#include "text/normalizer.h"

#include <cstdlib>
#include <memory>

#include <utf8proc.h>

#include "text/utf8.h"

namespace metroplex::text {
namespace {

std::string normal_form(std::string_view text, int options) {
  if (is_ascii(text)) return std::string(text);
  utf8proc_uint8_t* raw = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &raw, static_cast<utf8proc_option_t>(options | UTF8PROC_STABLE));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(raw, std::free);
  MPX_CHECK(size >= 0, "text", "Unicode normalization fails: ", utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(raw), static_cast<size_t>(size)};
}

std::string lowercase(std::string_view text) {
  std::string out;
  size_t position = 0;
  while (position < text.size()) {
    const char32_t c = next_code_point(text, position);
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    if (c == 0x130) {  // the one character whose lower case is two: i and a dot above
      out.pop_back();
      while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80) out.pop_back();
      out += "i\xCC\x87";
    }
  }
  return out;
}

std::string strip(std::string_view text, bool left, bool right) {
  size_t begin = 0, end = 0;
  bool seen = false;
  for (size_t position = 0; position < text.size();) {
    const size_t start = position;
    if (is_white_space(next_code_point(text, position))) continue;
    if (!seen) begin = start;
    seen = true;
    end = position;
  }
  if (!seen) return left || right ? "" : std::string(text);
  if (!left) begin = 0;
  if (!right) end = text.size();
  return std::string(text.substr(begin, end - begin));
}

int form_options(const std::string& type) {
  if (type == "NFC") return UTF8PROC_COMPOSE;
  if (type == "NFD") return UTF8PROC_DECOMPOSE;
  if (type == "NFKC") return UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
  if (type == "NFKD") return UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  return 0;
}

std::string replace_literal(std::string_view text, const std::string& from, const std::string& to) {
  std::string out;
  size_t done = 0;
  for (size_t at; (at = text.find(from, done)) != std::string_view::npos; done = at + from.size()) {
    out.append(text.substr(done, at - done)).append(to);
  }
  return out.append(text.substr(done));
}

}  // namespace

Rewrite make_replace(const JsonPart& part) {
  const std::string content = part.string("content");
  const JsonPart pattern = part.member("pattern");
  if (pattern.has("String")) {
    const std::string from = pattern.string("String");
    pattern.check(!from.empty(), "is an empty string");
    return [from, content](std::string_view text, RegexScratch&) { return replace_literal(text, from, content); };
  }
  const auto regex = std::make_shared<const Regex>(pattern.string("Regex"));
  return [regex, content](std::string_view text, RegexScratch& scratch) {
    std::vector<TextRange> matches;
    regex->find_all(text, scratch, matches);
    std::string out;
    size_t done = 0;
    for (const TextRange& match : matches) {
      out.append(text.substr(done, match.begin - done)).append(content);
      done = match.end;
    }
    return out.append(text.substr(done));
  };
}

Normalizer::Normalizer(const JsonPart& part) { add(part, 0); }

void Normalizer::add(const JsonPart& part, int depth) {
  if (part.is_null()) return;
  part.check(depth <= kMaxSequenceDepth, "Sequence holds Sequence more than ", kMaxSequenceDepth, " times");
  const std::string type = part.type();
  if (type == "Sequence") {
    for (const JsonPart& item : part.member("normalizers").items()) add(item, depth + 1);
  } else if (const int options = form_options(type)) {
    steps_.push_back([options](std::string_view text, RegexScratch&) { return normal_form(text, options); });
  } else if (type == "Prepend") {
    const std::string prefix = part.string("prepend");
    steps_.push_back([prefix](std::string_view text, RegexScratch&) {
      return text.empty() ? std::string() : prefix + std::string(text);
    });
  } else if (type == "Replace") {
    steps_.push_back(make_replace(part));
  } else if (type == "Lowercase") {
    steps_.push_back([](std::string_view text, RegexScratch&) { return lowercase(text); });
  } else if (type == "Strip") {
    const bool left = part.flag("strip_left", true), right = part.flag("strip_right", true);
    steps_.push_back([left, right](std::string_view text, RegexScratch&) { return strip(text, left, right); });
  } else {
    part.check(false, "normalizer '", type,
               "' is not known; known are NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip ", "and Sequence");
  }
}

std::string Normalizer::apply(std::string_view text, RegexScratch& scratch) const {
  std::string out(text);
  for (const Rewrite& step : steps_) {
    if (!out.empty()) out = step(out, scratch);
  }
  return out;
}

}  // namespace metroplex::text

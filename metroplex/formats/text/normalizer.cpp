#include "text/normalizer.h"

#include <memory>
#include <optional>

#include <utf8proc.h>

#include "text/normal_forms.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

std::string lowercase(std::string_view text, Sources* sources) {
  std::string out;
  for (size_t position = 0; position < text.size();) {
    const size_t begin = position;
    const char32_t c = next_code_point(text, position);
    std::string lower;
    append_utf8(lower, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    if (c == 0x130) lower = "i\xCC\x87";  // the only character with a two-character lower case: i and a dot above
    append_from(out, sources, lower, begin);
  }
  return out;
}

std::string strip(std::string_view text, bool left, bool right, Sources* sources) {
  size_t begin = 0, end = 0;
  bool seen = false;
  for (size_t position = 0; position < text.size();) {
    const size_t start = position;
    if (is_white_space(next_code_point(text, position))) continue;
    if (!seen) begin = start;
    seen = true;
    end = position;
  }
  if (!seen && !left && !right) end = text.size();
  if (seen && !left) begin = 0;
  if (seen && !right) end = text.size();
  std::string out;
  append_unchanged(out, sources, text, {begin, end});
  return out;
}

std::optional<NormalForm> to_form(const std::string& type) {
  if (type == "NFC") return NormalForm::nfc;
  if (type == "NFD") return NormalForm::nfd;
  if (type == "NFKC") return NormalForm::nfkc;
  if (type == "NFKD") return NormalForm::nfkd;
  return std::nullopt;
}

// `matches` must be in ascending order without overlaps. The content maps to the last character that it replaces.
std::string replace_matches(std::string_view text, const std::vector<TextRange>& matches, const std::string& content,
                            Sources* sources) {
  std::string out;
  size_t done = 0;
  for (const TextRange& match : matches) {
    append_unchanged(out, sources, text, {done, match.begin});
    append_from(out, sources, content, match.end > 0 ? match.end - 1 : kNoSource);
    done = match.end;
  }
  append_unchanged(out, sources, text, {done, text.size()});
  return out;
}

}  // namespace

Rewrite make_replace(const JsonPart& part) {
  const std::string content = part.string("content");
  const JsonPart pattern = part.member("pattern");
  if (pattern.has("String")) {
    const std::string from = pattern.string("String");
    pattern.check(!from.empty(), "is an empty string");
    return [from, content](std::string_view text, RegexScratch&, Sources* sources) {
      std::vector<TextRange> matches;
      for (size_t at = 0; (at = text.find(from, at)) != std::string_view::npos; at += from.size())
        matches.push_back({at, at + from.size()});
      return replace_matches(text, matches, content, sources);
    };
  }
  const auto regex = std::make_shared<const Regex>(pattern.string("Regex"));
  return [regex, content](std::string_view text, RegexScratch& scratch, Sources* sources) {
    std::vector<TextRange> matches;
    regex->find_all(text, scratch, matches);
    return replace_matches(text, matches, content, sources);
  };
}

Normalizer::Normalizer(const JsonPart& part) { add(part, 0); }

void Normalizer::add(const JsonPart& part, int depth) {
  if (part.is_null()) return;
  part.check(depth <= kMaxSequenceDepth, "Sequence is nested more than ", kMaxSequenceDepth, " levels deep");
  const std::string type = part.type();
  if (type == "Sequence") {
    for (const JsonPart& item : part.member("normalizers").items()) add(item, depth + 1);
  } else if (const auto form = to_form(type)) {
    steps_.push_back([form = *form](std::string_view text, RegexScratch&, Sources* sources) {
      return normalize(text, form, sources);
    });
  } else if (type == "Prepend") {
    const std::string prefix = part.string("prepend");
    steps_.push_back([prefix](std::string_view text, RegexScratch&, Sources* sources) {
      std::string out;
      if (!text.empty()) append_from(out, sources, prefix, 0);
      append_unchanged(out, sources, text, {0, text.size()});
      return out;
    });
  } else if (type == "Replace") {
    steps_.push_back(make_replace(part));
  } else if (type == "Lowercase") {
    steps_.push_back([](std::string_view text, RegexScratch&, Sources* sources) { return lowercase(text, sources); });
  } else if (type == "Strip") {
    const bool left = part.flag("strip_left", true), right = part.flag("strip_right", true);
    steps_.push_back([left, right](std::string_view text, RegexScratch&, Sources* sources) {
      return strip(text, left, right, sources);
    });
  } else {
    part.check(false, "normalizer '", type,
               "' is not supported; use NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip or Sequence");
  }
}

std::string Normalizer::apply(std::string_view text, RegexScratch& scratch, Sources* sources) const {
  std::string out;
  if (sources) sources->clear();
  append_unchanged(out, sources, text, {0, text.size()});
  for (const Rewrite& step : steps_) {
    if (out.empty()) break;
    Sources of_step;
    out = step(out, scratch, sources ? &of_step : nullptr);
    if (!sources) continue;
    for (size_t& source : of_step) source = source == kNoSource ? kNoSource : (*sources)[source];
    sources->swap(of_step);
  }
  return out;
}

}  // namespace metroplex::text

// The first thing a tokenizer.json does to a text: Unicode normal forms, prefixes, replacements. A Normalizer is a
// list of functions on strings, applied in order.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_part.h"
#include "text/regex.h"
#include "text/text_range.h"

namespace metroplex::text {

// Rewrites a text. Appends the source of each byte of the result to the last argument unless it is null.
using Rewrite = std::function<std::string(std::string_view, RegexScratch&, Sources*)>;

// Replaces every match of a string or a regular expression.
// From {"pattern": {"String"|"Regex": ...}, "content": ...}; used by the normalizer and the decoder of that name.
Rewrite make_replace(const JsonPart& part);

class Normalizer {
 public:
  // Nothing is done for null. Throws base::Error for a type it does not know.
  explicit Normalizer(const JsonPart& part);

  bool empty() const { return steps_.empty(); }
  // `text` must be valid UTF-8; so is the result.
  // With `sources` it also gives the source of each byte of the result.
  std::string apply(std::string_view text, RegexScratch& scratch, Sources* sources = nullptr) const;

 private:
  void add(const JsonPart& part, int depth);

  std::vector<Rewrite> steps_;
};

}  // namespace metroplex::text

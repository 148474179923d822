// The normalizer of a tokenizer.json: Unicode normal forms, prefixes and replacements, applied in order.
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

// Parses {"pattern": {"String"|"Regex": ...}, "content": ...} of the normalizer or decoder "Replace", which replaces
// every match.
Rewrite make_replace(const JsonPart& part);

class Normalizer {
 public:
  // Null gives an empty normalizer. Throws base::Error for an unknown type.
  explicit Normalizer(const JsonPart& part);

  bool empty() const { return steps_.empty(); }
  // `text` must be valid UTF-8, and so is the result. `sources` receives the source of each byte of the result.
  std::string apply(std::string_view text, RegexScratch& scratch, Sources* sources = nullptr) const;

 private:
  void add(const JsonPart& part, int depth);

  std::vector<Rewrite> steps_;
};

}  // namespace metroplex::text

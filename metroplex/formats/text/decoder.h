// Converts tokens to text with the "decoder" of a tokenizer.json: functions on the list of token spellings, applied
// in order. The remaining strings are joined.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "text/json_part.h"
#include "text/regex.h"

namespace metroplex::text {

class Decoder {
 public:
  // For null, tokens are joined with spaces. Throws base::Error for an unknown type.
  explicit Decoder(const JsonPart& part);

  // The decoder of GPT-2's byte alphabet.
  static Decoder byte_level();

  std::string decode(std::vector<std::string> tokens, RegexScratch& scratch) const;

 private:
  using Step = std::function<std::vector<std::string>(std::vector<std::string>, RegexScratch&)>;
  Decoder() = default;
  void add(const JsonPart& part, int depth);
  void add_byte_level();

  std::vector<Step> steps_;
};

}  // namespace metroplex::text

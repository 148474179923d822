// The way back from tokens to text, as the "decoder" of a tokenizer.json describes it: functions on the list of
// token spellings, applied in order; what is left is joined.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "text/json_part.h"
#include "text/regex.h"

namespace metroplex::text {

class Decoder {
 public:
  // Tokens are joined with spaces between for null. Throws base::Error for a type it does not know.
  explicit Decoder(const JsonPart& part);

  // Bytes spelled in GPT-2's alphabet.
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

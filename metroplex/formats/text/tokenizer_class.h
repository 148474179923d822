// The tokenizer classes of transformers 5 that take only the vocabulary, the merges and the post-processor from a
// tokenizer.json. They build the normalizer, the pre-tokenizer and the decoder themselves
// (models/*/tokenization_*.py). Other classes use the file as it is.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "text/tokenizer_files.h"

namespace metroplex::text {

// Returns the class that AutoTokenizer loads for `tokenizer_class` of tokenizer_config.json and `model_type` of
// config.json. Returns "" if the class uses tokenizer.json as it is. Either argument may be empty.
std::string choose_tokenizer_class(std::string_view declared, std::string_view model_type);

// A special token that the class has if the files do not name one.
struct DefaultToken {
  const char *key, *content;
};
std::vector<DefaultToken> default_tokens(std::string_view tokenizer_class);

// Replaces the parts of `tokenizer`, a tokenizer.json, that names.tokenizer_class builds itself.
void apply_tokenizer_class(const SpecialNames& names, nlohmann::json& tokenizer);

}  // namespace metroplex::text

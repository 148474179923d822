// One place that turns a tokenizer's type and files into a Tokenizer.
//   none           ids written as decimal numbers with spaces between; model is the vocabulary size; eod = size - 1
//   bytes          no file; 256 bytes and eod = 256
//   sentencepiece  model is a tokenizer.model, or a folder that holds one
//   bpe            model is a tokenizer.json, or a folder that holds one; or vocab_file + merge_file as GPT-2 ships
//   them
// An empty type with a model is found out from the file. tokenizer_config.json and special_tokens_map.json beside
// the model are read for the names of bos, eos and pad.
#pragma once

#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace metroplex::text {

// Throws base::Error (room "text") that names the file and what is wrong in it.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& type, const std::string& model,
                                          const std::string& vocab_file = "", const std::string& merge_file = "",
                                          InvalidUtf8 invalid_utf8 = InvalidUtf8::error);

// The file that `model` means for this type: itself, or what a folder of this name holds.
std::string tokenizer_model_file(const std::string& type, const std::string& model);

// The names that `type` may have.
const std::vector<std::string>& tokenizer_types();

}  // namespace metroplex::text

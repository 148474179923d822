// The source files of a tokenizer, for copies in checkpoints. A folder with these names is a loadable tokenizer:
//   sentencepiece  tokenizer.model
//   bpe            tokenizer.json, or vocab.json and merges.txt
//   both           tokenizer_config.json, special_tokens_map.json, added_tokens.json, chat_template.jinja,
//                  tool_use.jinja and generation_config.json, if they are next to the tokenizer
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/added_tokens.h"

namespace metroplex::text {

class Tokenizer;  // tokenizer.h

struct TokenizerFiles {
  std::string type;                                        // none | bytes | sentencepiece | bpe
  std::vector<std::pair<std::string, std::string>> files;  // name, bytes; empty for none and bytes
  // Checksum (files/checksum.h) of the bytes that determine ids: tokenizer.model, tokenizer.json, or vocab.json
  // followed by merges.txt. "" without files.
  std::string checksum;
};

// Reads the files that load_tokenizer uses for these arguments. An empty `type` is inferred from the file. Throws
// base::Error.
TokenizerFiles read_tokenizer_files(const std::string& type, const std::string& model, const std::string& vocab_file,
                                    const std::string& merge_file);

// The template for chats with tools. Hugging Face directories store it in additional_chat_templates.
inline constexpr const char* kToolUseTemplate = "tool_use.jinja";
// Returns the path of this file name inside a Hugging Face directory.
std::string path_in_directory(const std::string& name);

// Identifies the tokenizer as text; equal texts imply equal ids.
std::string identify_tokenizer(const Tokenizer& tokenizer, const TokenizerFiles& files);

// The arguments of load_tokenizer for a folder with these files.
struct TokenizerPaths {
  std::string model, vocab_file, merge_file;
};
TokenizerPaths tokenizer_paths(const std::string& folder, const std::vector<std::string>& names);

// The special tokens from the files next to a tokenizer, in the order of transformers:
// special_tokens_map.json, then tokenizer_config.json; only the latter if it has added_tokens_decoder. A name is a
// string or an object with "content". Without tokenizer_config.json, ids come from generation_config.json, then
// config.json; the first of several.
struct SpecialNames {
  std::optional<std::string> bos, eos, pad, unk;
  std::optional<int32_t> bos_id, eos_id, pad_id;
  std::string tokenizer_class;  // one that builds the tokenizer's steps itself (text/tokenizer_class.h), or ""
  std::optional<bool> add_prefix_space;
  bool legacy = false;                   // LlamaTokenizer only
  bool splits_special = false;           // split_special_tokens: special tokens are not found in the text
  std::optional<bool> add_bos, add_eos;  // add_bos_token and add_eos_token, or the default of tokenizer_class
  // Tokens of added_tokens_decoder in tokenizer_config.json, else of added_tokens.json. `added_where` names the file.
  std::vector<AddedToken> added;
  std::string added_where;
  bool has_added_decoder = false;  // `added` replaces tokens of tokenizer.json with the same content
  // Every special token that the files name or the class has, without an id. transformers adds the missing ones to
  // the vocabulary in this order.
  std::vector<AddedToken> special;
};

// Returns empty fields if neither file exists. Throws base::Error for an unreadable file.
SpecialNames read_special_names(const std::string& directory);

}  // namespace metroplex::text

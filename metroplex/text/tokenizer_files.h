// The files that a tokenizer was loaded from, to be carried along: under these names a folder of them is a tokenizer.
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
  // Of the bytes that decide about ids: of tokenizer.model, of tokenizer.json, or of vocab.json and behind it
  // merges.txt (files/checksum.h). "" without files.
  std::string checksum;
};

// What load_tokenizer reads for these arguments. `type` may be empty: it follows from the file. Throws base::Error.
TokenizerFiles read_tokenizer_files(const std::string& type, const std::string& model, const std::string& vocab_file,
                                    const std::string& merge_file);

// The template of chats with tools. Hugging Face directories have it in additional_chat_templates.
inline constexpr const char* kToolUseTemplate = "tool_use.jinja";
// The path of a file of this name in a Hugging Face directory.
std::string path_in_directory(const std::string& name);

// Which tokenizer it is, in words: equal words of equal ids.
std::string words_of(const Tokenizer& tokenizer, const TokenizerFiles& files);

// The arguments of load_tokenizer for a folder that holds these files.
struct TokenizerPaths {
  std::string model, vocab_file, merge_file;
};
TokenizerPaths tokenizer_paths(const std::string& folder, const std::vector<std::string>& names);

// Which tokens begin and end a text, by the files next to a tokenizer: tokenizer_config.json, then
// special_tokens_map.json. A name is a string or an object with "content". Without
// tokenizer_config.json, ids come from generation_config.json, then config.json; the first of several.

struct SpecialNames {
  std::optional<std::string> bos, eos, pad, unk;
  std::optional<int32_t> bos_id, eos_id, pad_id;
  std::optional<bool> add_prefix_space;  // GPT-2's
  std::optional<bool> add_bos, add_eos;  // add_bos_token and add_eos_token, or the default of tokenizer_class
  // Tokens of added_tokens_decoder in tokenizer_config.json, or else of added_tokens.json. `added_where` names the
  // file.
  std::vector<AddedToken> added;
  std::string added_where;
};

// All empty where neither file exists. Throws base::Error for a file that is there and cannot be read.
SpecialNames read_special_names(const std::string& directory);

}  // namespace metroplex::text

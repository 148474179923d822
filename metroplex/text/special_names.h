// Which tokens begin and end a text, by the files that lie beside a tokenizer: tokenizer_config.json, then
// special_tokens_map.json. A name is a string or an object with "content".
#pragma once

#include <optional>
#include <string>

namespace metroplex::text {

struct SpecialNames {
  std::optional<std::string> bos, eos, pad, unk;
  std::optional<bool> add_prefix_space;  // GPT-2's
};

// All empty where neither file exists. Throws base::Error for a file that is there and cannot be read.
SpecialNames read_special_names(const std::string& directory);

}  // namespace metroplex::text

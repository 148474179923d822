#include "text/tokenizer_files.h"

#include "files/file_system.h"
#include "files/json_text.h"
#include "text/json_part.h"

namespace metroplex::text {
namespace {

void take_name(const JsonPart& file, const char* key, std::optional<std::string>& name) {
  const JsonPart part = file.member(key);
  if (name || part.is_null()) return;
  if (part.value().is_string()) {
    name = part.value().get<std::string>();
  } else if (part.value().is_object()) {
    name = part.string("content");
  }
}

void take_id(const JsonPart& file, const char* key, std::optional<int32_t>& id) {
  const JsonPart part = file.member(key);
  const nlohmann::json& value = part.value().is_array() && !part.value().empty() ? part.value()[0] : part.value();
  if (id || !value.is_number_unsigned() || value.get<uint64_t>() > uint64_t(kMaxTokenId)) return;
  id = value.get<int32_t>();
}

// Classes of transformers that add tokens without add_bos_token and add_eos_token.
void take_class_defaults(const std::string& tokenizer_class, SpecialNames& names) {
  if (!names.add_bos && tokenizer_class.starts_with("CodeLlamaTokenizer")) names.add_bos = true;
  if (!names.add_eos && tokenizer_class.starts_with("T5Tokenizer")) names.add_eos = true;
}

}  // namespace

SpecialNames read_special_names(const std::string& directory) {
  SpecialNames names;
  files::PosixFileSystem disk;
  for (const char* file_name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string path = files::join_path(directory, file_name);
    if (!disk.exists(path)) continue;
    const nlohmann::json json = files::parse_json_strictly(disk.read(path), path);
    const JsonPart file(json, path);
    take_name(file, "bos_token", names.bos);
    take_name(file, "eos_token", names.eos);
    take_name(file, "pad_token", names.pad);
    take_name(file, "unk_token", names.unk);
    if (file.has("add_prefix_space")) names.add_prefix_space = file.flag("add_prefix_space", false);
    if (file.has("add_bos_token")) names.add_bos = file.flag("add_bos_token", false);
    if (file.has("add_eos_token")) names.add_eos = file.flag("add_eos_token", false);
    if (file.member("tokenizer_class").value().is_string())
      take_class_defaults(file.string("tokenizer_class"), names);
  }
  if (disk.exists(files::join_path(directory, "tokenizer_config.json"))) return names;
  for (const char* file_name : {"generation_config.json", "config.json"}) {
    const std::string path = files::join_path(directory, file_name);
    if (!disk.exists(path)) continue;
    const auto json = nlohmann::json::parse(disk.read(path), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) continue;  // its errors are of no concern to a tokenizer
    const JsonPart file(json, path);
    take_id(file, "bos_token_id", names.bos_id);
    take_id(file, "eos_token_id", names.eos_id);
    take_id(file, "pad_token_id", names.pad_id);
  }
  return names;
}

}  // namespace metroplex::text

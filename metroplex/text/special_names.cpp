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
  }
  return names;
}

}  // namespace metroplex::text

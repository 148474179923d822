#include "text/tokenizer_files.h"

#include <charconv>
#include <set>

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

AddedToken added_token(const JsonPart& part, int32_t id) {
  AddedToken token;
  token.id = id;
  token.content = part.string("content");
  token.single_word = part.flag("single_word", false);
  token.lstrip = part.flag("lstrip", false);
  token.rstrip = part.flag("rstrip", false);
  token.special = part.flag("special", false);
  token.normalized = part.flag("normalized", !token.special);
  return token;
}

// "added_tokens_decoder": {"32000": {"content": ...}}
void take_added_decoder(const JsonPart& file, SpecialNames& names) {
  const JsonPart part = file.member("added_tokens_decoder");
  if (!part.value().is_object()) return;
  names.added_where = part.where();
  for (const auto& [key, value] : part.value().items()) {
    int32_t id = 0;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
    part.check(read.ec == std::errc() && read.ptr == key.data() + key.size() && id >= 0 && id <= kMaxTokenId, "'",
               files::printable(key), "' is not an id");
    names.added.push_back(added_token(part.member(key.c_str()), id));
  }
}

void add_names(const JsonPart& list, std::set<std::string>& special) {
  if (!list.value().is_array()) return;
  for (const auto& name : list.value()) {
    if (name.is_string()) special.insert(name.get<std::string>());
    else if (name.is_object() && name.contains("content") && name["content"].is_string())
      special.insert(name["content"].get<std::string>());
  }
}

// added_tokens.json: {"<|im_end|>": 32000}. The other files name the special tokens.
void take_added_file(const std::string& directory, const std::set<std::string>& special, SpecialNames& names) {
  files::PosixFileSystem disk;
  const std::string path = files::join_path(directory, "added_tokens.json");
  if (!names.added_where.empty() || !disk.exists(path)) return;
  names.added_where = path;
  const nlohmann::json json = files::parse_json_strictly(disk.read(path), path);
  const JsonPart file(json, path);
  file.check(json.is_object(), "is not an object of token: id");
  for (const auto& [content, value] : json.items()) {
    AddedToken token;
    token.id = static_cast<int32_t>(file.integer(content.c_str(), 0, kMaxTokenId));
    token.content = content;
    token.special = special.contains(content);
    token.normalized = !token.special;
    names.added.push_back(token);
  }
}

// Classes of transformers that add tokens by default, without add_bos_token and add_eos_token.
void take_class_defaults(const std::string& tokenizer_class, SpecialNames& names) {
  if (!names.add_bos && tokenizer_class.starts_with("CodeLlamaTokenizer")) names.add_bos = true;
  if (!names.add_eos && tokenizer_class.starts_with("T5Tokenizer")) names.add_eos = true;
}

}  // namespace

SpecialNames read_special_names(const std::string& directory) {
  SpecialNames names;
  std::set<std::string> special;
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
    if (names.added_where.empty()) take_added_decoder(file, names);
    add_names(file.member("additional_special_tokens"), special);
    add_names(file.member("extra_special_tokens"), special);
  }
  for (const auto& name : {names.bos, names.eos, names.pad, names.unk}) {
    if (name) special.insert(*name);
  }
  take_added_file(directory, special, names);
  if (disk.exists(files::join_path(directory, "tokenizer_config.json"))) return names;
  for (const char* file_name : {"generation_config.json", "config.json"}) {
    const std::string path = files::join_path(directory, file_name);
    if (!disk.exists(path)) continue;
    const auto json = nlohmann::json::parse(disk.read(path), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) continue;  // other code reports its errors
    const JsonPart file(json, path);
    take_id(file, "bos_token_id", names.bos_id);
    take_id(file, "eos_token_id", names.eos_id);
    take_id(file, "pad_token_id", names.pad_id);
  }
  return names;
}

}  // namespace metroplex::text

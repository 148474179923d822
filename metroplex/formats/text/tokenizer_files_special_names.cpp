#include "text/tokenizer_files.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "files/file_system.h"
#include "files/json_text.h"
#include "text/json_part.h"
#include "text/tokenizer_class.h"

namespace metroplex::text {
namespace {

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

// A token as a string or an object with "content"; nullopt for another value.
std::optional<AddedToken> special_token(const JsonPart& part) {
  AddedToken token;
  if (part.value().is_string()) token.content = part.value().get<std::string>();
  else if (part.value().is_object() && part.has("content")) token = added_token(part, -1);
  if (token.content.empty()) return std::nullopt;
  token.special = true;
  return token;
}

// The files that name special tokens. The first file that has a key determines its value, even null.
using NameFiles = std::vector<JsonPart>;

constexpr const char* kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

std::optional<AddedToken> named_token(const NameFiles& files, const SpecialNames& names, const std::string& key) {
  for (const JsonPart& file : files) {
    if (file.value().contains(key)) return special_token(file.member(key.c_str()));
  }
  for (const auto& [default_key, content] : default_tokens(names.tokenizer_class)) {
    if (default_key != key) continue;
    AddedToken token;
    token.content = content;
    token.special = true;
    return token;
  }
  return std::nullopt;
}

void take_named_tokens(const NameFiles& files, SpecialNames& names) {
  for (const std::string key : kNamedTokens) {
    const std::optional<AddedToken> token = named_token(files, names, key);
    if (!token) continue;
    names.special.push_back(*token);
    if (key == "bos_token") names.bos = token->content;
    if (key == "eos_token") names.eos = token->content;
    if (key == "unk_token") names.unk = token->content;
    if (key == "pad_token") names.pad = token->content;
  }
}

void take_tokens(const JsonPart& list, SpecialNames& names) {
  for (const auto& [key, value] : list.value().items()) {
    const auto token = special_token({value, list.where() + "." + key});
    if (token) names.special.push_back(*token);
  }
}

bool is_other_token_key(const std::string& key) {
  return key.ends_with("_token") &&
         std::find(std::begin(kNamedTokens), std::end(kNamedTokens), key) == std::end(kNamedTokens);
}

// Tokens under other keys: "image_token" and the like, extra_special_tokens, additional_special_tokens.
void take_extra_tokens(const NameFiles& files, SpecialNames& names) {
  for (const JsonPart& file : files) {
    for (const auto& [key, value] : file.value().items()) {
      if (!is_other_token_key(key) || !value.is_string()) continue;
      if (const auto token = special_token(file.member(key.c_str()))) names.special.push_back(*token);
    }
  }
  // additional_special_tokens is the older name: the first list under it counts if the newer key has no tokens.
  bool found = false;
  for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
    for (auto file = files.rbegin(); file != files.rend(); ++file) {
      const JsonPart list = file->member(key);
      if (!list.value().is_structured() || list.value().empty() || (found && key[0] == 'a')) continue;
      take_tokens(list, names);
      found = true;
    }
  }
}

// "added_tokens_decoder": {"32000": {"content": ...}}
void take_added_decoder(const JsonPart& file, SpecialNames& names) {
  const JsonPart part = file.member("added_tokens_decoder");
  if (!part.value().is_object()) return;
  names.added_where = part.where();
  names.has_added_decoder = true;
  for (const auto& [key, value] : part.value().items()) {
    int32_t id = 0;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
    part.check(read.ec == std::errc() && read.ptr == key.data() + key.size() && id >= 0 && id <= kMaxTokenId, "'",
               files::printable(key), "' is not an id");
    names.added.push_back(added_token(part.member(key.c_str()), id));
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

void take_flags(const JsonPart& file, SpecialNames& names) {
  if (file.has("add_prefix_space")) names.add_prefix_space = file.flag("add_prefix_space", false);
  if (file.has("add_bos_token")) names.add_bos = file.flag("add_bos_token", false);
  if (file.has("add_eos_token")) names.add_eos = file.flag("add_eos_token", false);
  names.legacy = file.flag("legacy", false);
  names.splits_special = file.flag("split_special_tokens", false);
}

// Reads a JSON object from a file whose errors do not concern a tokenizer; null if there is none.
nlohmann::json optional_json(const std::string& path) {
  files::PosixFileSystem disk;
  if (!disk.exists(path)) return nullptr;
  const auto json = nlohmann::json::parse(disk.read(path), nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : nlohmann::json();
}

void take_class(const JsonPart& config, const std::string& directory, SpecialNames& names) {
  const nlohmann::json model = optional_json(files::join_path(directory, "config.json"));
  const auto text = [](const nlohmann::json& json, const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
  };
  std::string declared = text(config.value(), "tokenizer_class");
  take_class_defaults(declared, names);
  if (declared.empty()) declared = text(model, "tokenizer_class");
  files::PosixFileSystem disk;
  const std::string tokenizer = files::join_path(directory, "tokenizer.json");
  if (!disk.exists(tokenizer)) return;
  names.tokenizer_class = choose_tokenizer_class(declared, text(model, "model_type"));
  // transformers uses a byte-level file, such as Llama 3's, as it is.
  if (names.tokenizer_class == "LlamaTokenizer" &&
      disk.map(tokenizer).text().find("\"ByteLevel\"") != std::string_view::npos)
    names.tokenizer_class.clear();
}

void take_ids(const std::string& directory, SpecialNames& names) {
  for (const char* file_name : {"generation_config.json", "config.json"}) {
    const std::string path = files::join_path(directory, file_name);
    const nlohmann::json json = optional_json(path);
    if (json.is_null()) continue;
    const JsonPart file(json, path);
    take_id(file, "bos_token_id", names.bos_id);
    take_id(file, "eos_token_id", names.eos_id);
    take_id(file, "pad_token_id", names.pad_id);
  }
}

}  // namespace

SpecialNames read_special_names(const std::string& directory) {
  SpecialNames names;
  files::PosixFileSystem disk;
  const std::string config_path = files::join_path(directory, "tokenizer_config.json"),
                    map_path = files::join_path(directory, "special_tokens_map.json");
  nlohmann::json config, map;
  NameFiles sources;
  const auto read = [&](const std::string& path, nlohmann::json& json) {
    json = files::parse_json_strictly(disk.read(path), path);
    sources.emplace(sources.begin(), json, path);
    sources[0].check(json.is_object(), "is ", files::shortened(json), ", not an object");
  };
  if (disk.exists(config_path)) {
    read(config_path, config);
    take_flags(sources[0], names);
    take_class(sources[0], directory, names);
    take_added_decoder(sources[0], names);
  }
  if (disk.exists(map_path) && !names.has_added_decoder) read(map_path, map);
  take_named_tokens(sources, names);
  take_extra_tokens(sources, names);
  std::set<std::string> special;
  for (const AddedToken& token : names.special) special.insert(token.content);
  take_added_file(directory, special, names);
  std::sort(names.added.begin(), names.added.end(),
            [](const AddedToken& left, const AddedToken& right) { return left.id < right.id; });
  if (config.is_null()) take_ids(directory, names);
  return names;
}

}  // namespace metroplex::text

#include "text/tokenizer_files.h"

#include <algorithm>

#include "base/error.h"
#include "files/checksum.h"
#include "files/file_system.h"
#include "text/tokenizer.h"
#include "text/tokenizer_class.h"

namespace metroplex::text {
namespace {

constexpr const char *kModel = "tokenizer.model", *kJson = "tokenizer.json", *kVocab = "vocab.json",
                     *kMerges = "merges.txt";
constexpr const char* kExtraFiles[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                       "chat_template.jinja",   kToolUseTemplate,          "generation_config.json"};

// A copy of a folder has no config.json, so tokenizer_config.json must name the class that both files choose.
std::string name_tokenizer_class(const std::string& config, const std::string& folder) {
  const std::string chosen = read_special_names(folder).tokenizer_class;
  auto json = nlohmann::ordered_json::parse(config);
  const auto declared = json.find("tokenizer_class");
  const bool named = declared != json.end() && declared->is_string();
  if (choose_tokenizer_class(named ? declared->get<std::string>() : "", "") == chosen) return config;
  json["tokenizer_class"] = chosen.empty() ? "PreTrainedTokenizerFast" : chosen;
  return json.dump(2) + "\n";
}

}  // namespace

TokenizerFiles read_tokenizer_files(const std::string& type, const std::string& model, const std::string& vocab_file,
                                    const std::string& merge_file) {
  TokenizerFiles out;
  out.type = type;
  if (type == "none" || type == "bytes") return out;
  files::PosixFileSystem disk;
  std::string folder;
  if (model.empty() && type != "sentencepiece" && !vocab_file.empty()) {
    out.type = "bpe";
    out.files = {{kVocab, disk.read(vocab_file)}, {kMerges, disk.read(merge_file)}};
    folder = files::parent_directory(vocab_file);
  } else {
    const std::string path = tokenizer_model_file(type, model);
    const bool json = type == "bpe" || (type.empty() && path.ends_with(".json"));
    out.type = json ? "bpe" : "sentencepiece";
    folder = files::parent_directory(path);
    if (const std::string merges = find_merges_file(path); !merges.empty()) {
      out.files = {{kVocab, disk.read(path)}, {kMerges, disk.read(merges)}};
    } else {
      out.files = {{json ? kJson : kModel, disk.read(path)}};
    }
  }
  files::ChecksumStream sum;
  for (const auto& [name, bytes] : out.files) sum.add(bytes.data(), bytes.size());
  out.checksum = files::to_hex(sum.sum());
  for (const char* name : kExtraFiles) {
    for (const std::string& path :
         {files::join_path(folder, path_in_directory(name)), files::join_path(folder, name)}) {
      if (!disk.exists(path)) continue;
      out.files.emplace_back(name, disk.read(path));
      if (name == std::string("tokenizer_config.json") && out.files[0].first == kJson)
        out.files.back().second = name_tokenizer_class(out.files.back().second, folder);
      break;
    }
  }
  return out;
}

std::string path_in_directory(const std::string& name) {
  return name == kToolUseTemplate ? files::join_path("additional_chat_templates", name) : name;
}

std::string identify_tokenizer(const Tokenizer& tokenizer, const TokenizerFiles& files) {
  return base::concat(tokenizer.name(), " of ", tokenizer.vocab_size(), " ids",
                      files.checksum.empty() ? "" : " with the checksum " + files.checksum);
}

TokenizerPaths tokenizer_paths(const std::string& folder, const std::vector<std::string>& names) {
  const auto path = [&](const char* name) {
    const bool there = std::find(names.begin(), names.end(), name) != names.end();
    return there ? files::join_path(folder, name) : std::string();
  };
  const std::string json = path(kJson);
  return {json.empty() ? path(kModel) : json, path(kVocab), path(kMerges)};
}

}  // namespace metroplex::text

#include "checkpoint/load.h"

#include <algorithm>
#include <vector>

#include "files/manifest.h"

namespace metroplex::checkpoint {

using files::join_path;

// One checkpoint, not a folder of them.
static std::string format_of_one(files::FileSystem& disk, const std::string& directory) {
  const std::vector<std::string> names = disk.list(directory);
  const auto any = [&](const auto& test) { return std::any_of(names.begin(), names.end(), test); };
  const auto has = [&](const char* name) { return any([&](const std::string& other) { return other == name; }); };
  if (has(files::kManifestName)) return "";
  const bool distributed = any([](const std::string& name) { return name.ends_with(".distcp"); });
  if (has("common.pt") || (distributed && has("metadata.json"))) return "Megatron-LM's torch_dist format";
  if (distributed || has(".metadata"))
    return "torch.distributed.checkpoint's format, as Megatron-LM's torch_dcp writes it";
  if (any([](const std::string& name) { return name.starts_with("mp_rank_"); })) return "Megatron-LM's torch format";
  const bool weights = any([](const std::string& name) {
    return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") || name == "pytorch_model.bin";
  });
  return weights && has("config.json") ? "the format of Hugging Face's transformers" : "";
}

std::string foreign_format(files::FileSystem& disk, const std::string& directory) {
  if (!disk.is_directory(directory)) return "";
  if (const std::string format = format_of_one(disk, directory); !format.empty()) return format;
  const std::vector<std::string> names = disk.list(directory);
  std::string found;
  for (const std::string& name : names) {
    const std::string path = join_path(directory, name);
    if ((name.starts_with("iter_") || name == "release") && disk.is_directory(path)) {
      if (disk.exists(join_path(path, files::kManifestName))) return "";
      if (found.empty()) found = format_of_one(disk, path);
    }
  }
  const bool tracked = std::find(names.begin(), names.end(), "latest_checkpointed_iteration.txt") != names.end();
  return found.empty() && tracked ? "a format of Megatron-LM's" : found;
}

}  // namespace metroplex::checkpoint

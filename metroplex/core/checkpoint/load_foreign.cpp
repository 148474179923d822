#include "checkpoint/load.h"

#include <algorithm>

#include "base/error.h"
#include "files/manifest.h"

namespace metroplex::checkpoint {
namespace {

using files::join_path;

constexpr const char* kHuggingFace = "the format of Hugging Face transformers";
constexpr const char *kTorchDist = "Megatron-LM's torch_dist format", *kTorch = "Megatron-LM's torch format",
                     *kTorchDcp = "Megatron-LM's torch_dcp format";

template <class Test>
bool any_name(const std::vector<std::string>& names, const Test& test) {
  return std::any_of(names.begin(), names.end(), test);
}

bool is_deepspeed_file(const std::string& name) {
  return name.ends_with("_model_states.pt") || name.ends_with("_optim_states.pt") || name == "zero_to_fp32.py";
}

bool is_weight_file(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
         (name.starts_with("pytorch_model") && (name.ends_with(".bin") || name.ends_with(".bin.index.json")));
}

// Whether .metadata of torch.distributed.checkpoint has the names of megatron.core.
bool has_megatron_names(files::FileSystem& disk, const std::string& directory) {
  const std::string path = join_path(directory, ".metadata");
  return disk.exists(path) &&
         disk.map(path).text().find("embedding.word_embeddings.weight") != std::string_view::npos;
}

// Returns the format of a single checkpoint, not of a folder of checkpoints.
std::string format_of_one(files::FileSystem& disk, const std::string& directory) {
  const std::vector<std::string> names = disk.list(directory);
  const auto has = [&](const char* name) {
    return any_name(names, [&](const std::string& other) { return other == name; });
  };
  if (has(files::kManifestName)) return "";
  if (any_name(names, is_deepspeed_file)) return "DeepSpeed's format";
  const bool distributed = any_name(names, [](const std::string& name) { return name.ends_with(".distcp"); });
  if (has("common.pt") || (distributed && has("metadata.json"))) return kTorchDist;
  if (has_megatron_names(disk, directory)) return kTorchDcp;
  if (distributed || has(".metadata")) return "torch.distributed.checkpoint's format, written by FSDP";
  const bool megatron = any_name(names, [](const std::string& name) { return name.starts_with("mp_rank_"); });
  if (megatron || has("model_optim_rng.pt") || has("distrib_optim.pt")) return kTorch;
  if (has("adapter_config.json")) return "PEFT's adapter format";
  if (has("config.json") && any_name(names, is_weight_file)) return kHuggingFace;
  if (any_name(names, [](const std::string& name) { return name.starts_with("consolidated."); }))
    return "the format of Meta's and Mistral's releases";
  if (has("model_weights.ckpt")) return "NeMo's format";
  if (any_name(names, [](const std::string& name) { return name.ends_with(".gguf"); }))
    return "llama.cpp's GGUF format";
  const bool other_weights = has("config.json") && (has("flax_model.msgpack") || has("tf_model.h5"));
  return other_weights ? "transformers' format for JAX or TensorFlow" : "";
}

bool is_checkpoint_name(const std::string& name) {
  return name == "release" || name == "huggingface" || name == "weights" ||
         any_name({"iter_", "mp_rank_", "global_step", "checkpoint-", "step-", "step_", "pytorch_model_fsdp"},
                  [&](const std::string& prefix) { return name.starts_with(prefix); });
}

std::string suggest_fix(const std::string& format) {
  if (format == kHuggingFace) return "start from its weights with --model.from DIR, which reads safetensors files";
  if (format == kTorchDist || format == kTorch || format == kTorchDcp)
    return "start from its weights with --model.from DIR, or convert them with metroplex convert DIR --to checkpoint "
           "OUT";
  return "convert it to a Hugging Face directory with the other program's converter, and start from that with "
         "--model.from DIR";
}

}  // namespace

std::string foreign_format(files::FileSystem& disk, const std::string& directory) {
  if (!disk.is_directory(directory)) return "";
  if (disk.exists(join_path(directory, files::kManifestName))) return "";
  const std::vector<std::string> names = disk.list(directory);
  std::string found;
  bool global_steps = false;
  for (const std::string& name : names) {
    const std::string path = join_path(directory, name);
    if (!is_checkpoint_name(name) || !disk.is_directory(path)) continue;
    if (disk.exists(join_path(path, files::kManifestName))) return "";
    if (found.empty()) found = format_of_one(disk, path);
    global_steps = global_steps || name.starts_with("global_step");
  }
  if (const std::string format = format_of_one(disk, directory); !format.empty()) return format;
  if (!found.empty()) return found;
  if (global_steps) return "DeepSpeed's format";
  const bool tracked = std::find(names.begin(), names.end(), "latest_checkpointed_iteration.txt") != names.end();
  return tracked ? "a Megatron-LM format" : "";
}

void refuse_foreign(files::FileSystem& disk, const std::string& path) {
  const std::string format = foreign_format(disk, path);
  MPX_CHECK(
      format.empty(), "checkpoint", "'", path, "' contains a checkpoint in ", format,
      "; metroplex reads its own format (docs/checkpoint_format.md) and the weights of Hugging Face directories "
      "in safetensors files (docs/huggingface.md) and of Megatron-LM (docs/megatron_checkpoints.md): ",
      suggest_fix(format));
}

}  // namespace metroplex::checkpoint

// Writes adapters in PEFT's format, with the module names of transformers.
#include "hf/directory.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "config/load.h"
#include "hf/adapters.h"

namespace metroplex::hf {
namespace {

struct ExportedTensor {
  files::TensorInfo info;
  std::string ours, kind;
  Dims shape, offset, size;  // of ours, and of the exported region
};

// Returns the tensor under PEFT's name, from the main parameter if the run has one. `expert`: of a stack, or -1.
ExportedTensor export_tensor(const checkpoint::Reader& run, const std::string& name, const std::string& theirs,
                             int64_t expert = -1) {
  const std::string kind = run.find(name, "main") != nullptr ? "main" : "weight";
  const files::TensorForm& form = *run.find(name, kind);
  Dims offset(form.shape.size(), 0), size = form.shape;
  if (expert >= 0) offset[0] = expert, size[0] = 1;
  return {{kPeftPrefix + theirs, form.dtype, {size.begin() + (expert >= 0 ? 1 : 0), size.end()}},
          name,
          kind,
          form.shape,
          offset,
          size};
}

// Returns all adapters of the run.
std::vector<ExportedTensor> exported_adapters(const checkpoint::Reader& run,
                                              const std::vector<AdapterModule>& modules) {
  std::vector<ExportedTensor> all;
  std::set<std::string> ours;
  for (const AdapterModule& module : modules) {
    for (const char* which : {config::kLoraA, config::kLoraB, config::kLoraMagnitude}) {
      if (run.find(module.ours + which, "weight") == nullptr) continue;
      all.push_back(export_tensor(run, module.ours + which, module.theirs + which, module.expert));
      ours.insert(module.ours + which);
    }
  }
  for (const files::TensorForm& form : run.tensors()) {
    MPX_CHECK(form.kind != "weight" || form.name.starts_with("mtp.") || !config::is_adapter(form.name) ||
                  ours.contains(form.name),
              "hf", "'", run.directory(), "': transformers has no separate module for the adapter ", form.name,
              "; use --to hf to write a model with merged adapters");
  }
  MPX_CHECK(!all.empty(), "hf", "'", run.directory(),
            "' has no adapters (it was trained without peft.lora_rank); use --to hf to write its weights");
  return all;
}

// With tied embeddings PEFT also stores the weight of the head.
std::vector<ExportedTensor> exported_modules(const checkpoint::Reader& run, const config::Config& config,
                                             const std::vector<MappedTensor>& mapped) {
  std::vector<ExportedTensor> all;
  for (const MappedTensor& tensor : mapped) {
    if (config::is_adapter(tensor.name) || !config.peft.trains(tensor.name)) continue;
    all.push_back(export_tensor(run, tensor.name, tensor.parts.front().name));
    if (config.model.tied()) all.push_back(export_tensor(run, tensor.name, "lm_head.weight"));
  }
  return all;
}

// PEFT applies the module names of an MLP to the routed experts of an MoE model, however the names are written.
// Adapters of routed experts have the names of transformers 4, which PEFT converts.
void check_words(const checkpoint::Reader& run, const config::Model& model, const std::vector<ExportedTensor>& all) {
  if (!model.has_experts()) return;
  for (const ExportedTensor& tensor : all) {
    const bool is_mlp =
        tensor.ours.find(".mlp.") != std::string::npos && tensor.ours.find("_latent_proj.") == std::string::npos;
    MPX_CHECK(!is_mlp || config::is_routed(tensor.ours), "hf", "'", run.directory(), "': PEFT would read ",
              tensor.ours,
              " as an adapter of routed experts; use --to hf to write a model with merged adapters, or train with "
              "only other modules or experts.* in peft.lora_target_modules");
  }
}

Json adapter_config(const config::Config& config, const checkpoint::Reader& run,
                    const std::vector<AdapterModule>& modules, const std::string& base) {
  const config::Peft& peft = config.peft;
  std::map<std::string, double> targets, ranks, alphas;
  for (const AdapterModule& module : modules) {
    const bool adapted = run.find(module.ours + config::kLoraA, "weight") != nullptr;
    targets[module.theirs] = adapted ? 1 : 0;
    if (!adapted) continue;
    ranks[module.theirs] = static_cast<double>(peft.rank(module.ours));
    alphas[module.theirs] = peft.alpha(module.ours);
  }
  std::vector<std::string> names;
  for (const auto& [name, value] : shorten(targets, 0)) names.push_back(name);
  Json rank_pattern = Json::object();
  for (const auto& [name, rank] : shorten(ranks, static_cast<double>(peft.lora_rank)))
    rank_pattern[name] = static_cast<int64_t>(rank);
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base.empty() ? Json() : Json(base)},
          {"r", peft.lora_rank},
          {"lora_alpha", peft.lora_alpha},
          {"rank_pattern", rank_pattern},
          {"alpha_pattern", Json(shorten(alphas, peft.lora_alpha))},
          {"lora_dropout", peft.lora_dropout},
          {"target_modules", names},
          {"use_rslora", peft.use_rslora},
          {"use_dora", peft.use_dora},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"init_lora_weights", true},
          {"inference_mode", true},
          {"modules_to_save", peft.modules_to_save.empty() ? Json() : Json(peft.modules_to_save)},
          {"ensure_weight_tying", !peft.modules_to_save.empty() && config.model.tied()}};
}

void write_tensors(files::FileSystem& disk, checkpoint::Reader& run, const std::string& part,
                   const std::vector<ExportedTensor>& all) {
  std::vector<files::TensorInfo> infos;
  std::map<std::string, const ExportedTensor*> by_name;
  for (const ExportedTensor& tensor : all) infos.push_back(tensor.info), by_name[tensor.info.name] = &tensor;
  files::order_tensors(infos);
  files::SafetensorsWriter writer(disk, files::join_path(part, "adapter_model.safetensors"), infos,
                                  {{"format", "pt"}});
  for (const files::TensorInfo& info : infos) {
    const ExportedTensor& tensor = *by_name.at(info.name);
    std::vector<std::byte> bytes(files::tensor_bytes(info.dtype, info.shape, info.name));
    run.fill({tensor.ours, tensor.kind, tensor.shape, tensor.offset, tensor.size, info.dtype, bytes.data()});
    writer.write(bytes.data(), bytes.size());
  }
  writer.finish();
}

}  // namespace

void write_adapters(files::FileSystem& disk, checkpoint::Reader& run, const std::string& directory,
                    const std::string& base) {
  config::Config config = config::parse_saved(run.manifest().config_yaml);
  check_writable(disk, config.model, directory);
  if (const files::TensorForm* words = run.find("embedding.word_embeddings.weight", "weight"); words != nullptr)
    config.model.vocab_size = words->shape.at(0);
  const std::vector<MappedTensor> mapped = family_for(config.model).tensors(config.model);
  const std::vector<AdapterModule> linear = adapter_modules(config.model, mapped);
  const std::vector<ExportedTensor> adapters = exported_adapters(run, linear),
                                    modules = exported_modules(run, config, mapped);
  check_words(run, config.model, adapters);
  std::vector<ExportedTensor> all = adapters;
  all.insert(all.end(), modules.begin(), modules.end());
  disk.make_whole(directory, [&](const std::string& part) {
    write_tensors(disk, run, part, all);
    disk.replace_file(files::join_path(part, "adapter_config.json"),
                      adapter_config(config, run, linear, base).dump(2) + "\n");
  });
}

}  // namespace metroplex::hf

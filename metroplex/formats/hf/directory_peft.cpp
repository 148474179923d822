// Writes adapters in PEFT's format, with the module names of transformers.
#include "hf/directory.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "config/load.h"
#include "hf/merged.h"

namespace metroplex::hf {
namespace {

constexpr const char* kMtpPrefix = "mtp.";  // multi-token prediction layers, which transformers lacks

struct ExportedTensor {
  files::TensorInfo info;
  std::string ours, kind;
};

// Returns the tensor under PEFT's name, from the main parameter if the run has one.
ExportedTensor export_tensor(const checkpoint::Reader& run, const std::string& name, const std::string& theirs) {
  const std::string kind = run.find(name, "main") != nullptr ? "main" : "weight";
  const files::TensorForm& form = *run.find(name, kind);
  return {{"base_model.model." + theirs, form.dtype, {form.shape.begin(), form.shape.end()}}, name, kind};
}

// Returns the last module of "model.layers.0.self_attn.q_proj.weight": "q_proj".
std::string module_name(const std::string& theirs) {
  const size_t end = theirs.rfind('.'), begin = theirs.rfind('.', end - 1);
  return theirs.substr(begin + 1, end - begin - 1);
}

// Returns all adapters of the run, one pair per part of an adapted weight.
std::vector<ExportedTensor> exported_adapters(const checkpoint::Reader& run,
                                              const std::vector<MappedTensor>& mapped) {
  std::vector<ExportedTensor> all;
  std::set<std::string> seen, ours;
  for (const MappedTensor& tensor : mapped) {
    if (tensor.name.starts_with(kMtpPrefix)) continue;
    const std::string linear = tensor.name.substr(0, tensor.name.rfind('.'));
    for (const TensorPart& part : tensor.parts) {
      if (!tensor.name.ends_with(".weight") || !part.name.ends_with(".weight") || !seen.insert(part.name).second)
        continue;
      const std::string module = config::adapter_module(linear, module_name(part.name));
      for (const char* which : {config::kLoraA, config::kLoraB}) {
        const std::string name = module + which;
        if (run.find(name, "weight") == nullptr) continue;
        all.push_back(export_tensor(run, name, part.name.substr(0, part.name.rfind('.')) + which));
        ours.insert(name);
      }
    }
  }
  for (const files::TensorForm& form : run.tensors()) {
    MPX_CHECK(form.kind != "weight" || form.name.starts_with(kMtpPrefix) || !config::is_adapter(form.name) ||
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
void check_words(const checkpoint::Reader& run, const config::Model& model, const std::vector<ExportedTensor>& all) {
  if (!model.has_experts()) return;
  for (const ExportedTensor& tensor : all) {
    MPX_CHECK(tensor.ours.find(".mlp.") == std::string::npos, "hf", "'", run.directory(), "': PEFT would read ",
              tensor.ours,
              " as an adapter of routed experts; use --to hf to write a model with merged adapters, or train with "
              "only attention modules in peft.lora_target_modules");
  }
}

Json adapter_config(const config::Config& config, const std::vector<ExportedTensor>& adapters,
                    const std::string& base) {
  std::set<std::string> words;
  for (const ExportedTensor& tensor : adapters)
    words.insert(module_name(config::adapted_module(tensor.info.name) + ".weight"));
  const config::Peft& peft = config.peft;
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base.empty() ? Json() : Json(base)},
          {"r", peft.lora_rank},
          {"lora_alpha", peft.lora_alpha},
          {"lora_dropout", peft.lora_dropout},
          {"target_modules", words},
          {"use_rslora", peft.use_rslora},
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
    const std::vector<int64_t> shape(info.shape.begin(), info.shape.end()), start(shape.size(), 0);
    std::vector<std::byte> bytes(files::tensor_bytes(info.dtype, info.shape, info.name));
    run.fill({tensor.ours, tensor.kind, shape, start, shape, info.dtype, bytes.data()});
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
  const std::vector<ExportedTensor> adapters = exported_adapters(run, mapped),
                                    modules = exported_modules(run, config, mapped);
  check_words(run, config.model, adapters);
  std::vector<ExportedTensor> all = adapters;
  all.insert(all.end(), modules.begin(), modules.end());
  disk.make_whole(directory, [&](const std::string& part) {
    write_tensors(disk, run, part, all);
    disk.replace_file(files::join_path(part, "adapter_config.json"),
                      adapter_config(config, adapters, base).dump(2) + "\n");
  });
}

}  // namespace metroplex::hf

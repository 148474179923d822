// Adapters that PEFT saved: adapter_config.json and adapter_model.safetensors (LoRA). `ours` names a module as
// config/peft.h does (decoder.layers.0.self_attention.q_proj), `theirs` as transformers does
// (model.layers.0.self_attn.q_proj). Multi-token prediction layers, which transformers lacks, have no such modules.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/tensor_source.h"
#include "files/file_system.h"
#include "files/safetensors.h"
#include "hf/family.h"

namespace metroplex::hf {

inline constexpr const char* kPeftPrefix = "base_model.model.";  // of every tensor

// A linear layer of transformers whose output is that of one adapter of ours, or of expert `expert` in a stack of
// them.
struct AdapterModule {
  std::string ours, theirs;
  int64_t in_features = 0, out_features = 0, expert = -1;
};
std::vector<AdapterModule> adapter_modules(const config::Model& model, const std::vector<MappedTensor>& mapped);
// Returns the last name of a module: "q_proj".
std::string last_name(const std::string& module);

// Short names for modules with a value: the `end` of the name if all modules that have it have the same value, else
// each module's whole name. Modules with the value `otherwise` have no entry.
std::map<std::string, double> shorten(const std::map<std::string, double>& modules, double otherwise,
                                      std::string (*end)(const std::string& module) = last_name);

// Returns keys of section peft for the adapters in `directory`, whose model must be resolved. Throws
// base::Error("hf") for a key of adapter_config.json that is not supported.
Settings read_adapter_settings(files::FileSystem& disk, const std::string& directory, const config::Model& model);

// The weights of a model and its adapters. Modules that PEFT saved in full (modules_to_save) replace the model's.
// Throws base::Error("checkpoint") with a list of all missing, misshapen and unknown tensors of the adapters.
class AdaptedWeights final : public checkpoint::TensorSource {
 public:
  AdaptedWeights(files::FileSystem& disk, const std::string& directory, std::unique_ptr<TensorSource> base,
                 const config::Model& model);

 private:
  void add_adapters(const config::Model& model, const std::string& config);  // config: the text of the file
  void read(size_t tensor, const checkpoint::Piece& region, void* data) override;

  struct Part {
    const std::byte* data;
    checkpoint::Piece piece;
  };
  std::unique_ptr<TensorSource> base_;
  std::string adapters_;  // the directory
  files::SafetensorsFile file_;
  std::map<std::string, std::vector<Part>> parts_;  // of our tensors that come from file_
};

}  // namespace metroplex::hf

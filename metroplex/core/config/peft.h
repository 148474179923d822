// LoRA (arXiv 2106.09685; the alternative scale: arXiv 2312.03732): adapted linear layers, adapter names, and the
// position of adapter outputs in fused layers. An adapter of <module>, such as
// decoder.layers.0.self_attention.q_proj, has <module>.lora_A.weight [rank, in] and <module>.lora_B.weight [out,
// rank]. It replaces its rows of the layer's weight W with W + scale B A. With DoRA (arXiv 2402.09353), each row is
// then scaled to the length in <module>.lora_magnitude_vector [out]. The adapters of <layer>.mlp.experts.gate_proj
// are stacked: [experts, rank, in] and [experts, out, rank].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/choice.h"
#include "config/model.h"

namespace metroplex::config {

enum class BaseFormat { params, fp8, nvfp4 };
template <>
inline constexpr Word<BaseFormat> kWords<BaseFormat>[] = {
    {BaseFormat::params, "params"}, {BaseFormat::fp8, "fp8"}, {BaseFormat::nvfp4, "nvfp4"}};

struct Peft {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/peft_keys.inc"
#undef KEY

  bool lora() const { return lora_rank > 0; }
  // Whether frozen weights of linear layers and experts are stored as codes.
  bool stores_codes() const { return lora() && base_format != BaseFormat::params; }
  // Rank, alpha and scale of the adapter of <module>.
  int64_t rank(const std::string& module) const;
  double alpha(const std::string& module) const;
  double scale(const std::string& module) const;
  bool adapts(const std::string& module) const;
  bool adapts_routed_experts() const;
  // True if LoRA trains this parameter: an adapter, or the weight of a module in modules_to_save.
  bool trains(const std::string& param) const;
};

// An entry PATTERN=NUMBER of peft.rank_pattern or peft.alpha_pattern (module_pattern.h); the first match counts.
struct ModuleNumber {
  std::string pattern;
  double number = 0;
};
// Returns nothing if the text has another form or the number is not above 0.
std::optional<ModuleNumber> read_module_number(const std::string& text);
// Whether a name in peft.lora_target_modules selects <module>: as its name, or as the end of its name after a dot.
bool is_target(const std::string& target, const std::string& module);
// Whether a module, or a name in peft.lora_target_modules, is of routed experts: experts.gate_proj.
bool is_routed(const std::string& module);

// The output rows of a layer that an adapter adds to. The output consists of `repeats` adjacent groups of `width`
// rows. The adapter covers rows [begin, begin + size) of each group. A layer that is not fused is one group.
struct AdapterBox {
  std::string word;  // in peft.lora_target_modules
  int64_t repeats = 1, width = 0, begin = 0, size = 0;
  int64_t rows() const { return repeats * size; }
};

AdapterBox whole_layer(const std::string& word, int64_t rows);
// For linear_qkv, or for linear_kv without queries: the queries, key and value of each query group.
std::vector<AdapterBox> qkv_boxes(const Model& model, bool with_queries);
// For linear_fc1 [width, or gate and up]; `width` is that of the unsharded layer.
std::vector<AdapterBox> fc1_boxes(const Model& model, int64_t width);

// Returns the adapter words of the model: attention, dense MLP and shared experts, and "experts.<word>" of routed
// experts, as far as it has them.
std::vector<std::string> adapter_words(const Model& model);

// A parameter that peft.modules_to_save can name: embed_tokens or lm_head. With tied embeddings only embed_tokens.
struct SavedModule {
  const char* word;
  const char* param;
};
std::vector<SavedModule> saved_modules(const Model& model);

inline constexpr const char* kLoraA = ".lora_A.weight";
inline constexpr const char* kLoraB = ".lora_B.weight";
inline constexpr const char* kLoraMagnitude = ".lora_magnitude_vector";
bool is_adapter(const std::string& param);
// Returns the module of an adapter's parameter: "decoder.layers.0.self_attention.q_proj".
std::string adapted_module(const std::string& param);
// Returns <prefix>.<word>, the adapter's module name for the linear layer <prefix>.linear_...
std::string adapter_module(const std::string& linear, const std::string& word);

// Returns the full name of the linear layer that contains the adapter's rows, and the rows. Returns nothing if the
// name is not an adapter of this model.
struct AdapterPlace {
  std::string linear;
  AdapterBox box;
};
std::optional<AdapterPlace> adapter_place(const Model& model, const std::string& module);

}  // namespace metroplex::config

// LoRA (arXiv 2106.09685; the other scale: arXiv 2312.03732): which linear layers have adapters, under which names,
// and where their outputs lie in a fused layer. An adapter of <module>, say decoder.layers.0.self_attention.q_proj,
// is <module>.lora_A.weight [rank, in] and <module>.lora_B.weight [out, rank]; of its layer's weight W its rows
// become W + scale B A.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/model.h"

namespace metroplex::config {

// Its keys, each with type, default and help: peft_keys.inc.
struct Peft {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/peft_keys.inc"
#undef KEY

  bool lora() const { return lora_rank > 0; }
  double lora_scale() const;
  // Whether the linear layers of this word have adapters.
  bool adapts(const std::string& word) const;
  // Whether LoRA trains this parameter: an adapter, or the weight of a module in modules_to_save.
  bool trains(const std::string& param) const;
};

// The rows of a layer's output that an adapter adds to: of each of `repeats` neighbouring groups of `width` rows
// those from `begin`, `size` of them. A layer that is not fused is one group, all of it one box.
struct AdapterBox {
  std::string word;  // of peft.lora_target_modules
  int64_t repeats = 1, width = 0, begin = 0, size = 0;
  int64_t rows() const { return repeats * size; }
};

AdapterBox whole_layer(const std::string& word, int64_t rows);
// Of linear_qkv, or of linear_kv with the queries elsewhere: of each query group its queries, key and value.
std::vector<AdapterBox> qkv_boxes(const Model& model, bool with_queries);
// Of linear_fc1 [width, or gate and up]; `width` of the whole layer.
std::vector<AdapterBox> fc1_boxes(const Model& model, int64_t width);

// Where the model has a dense MLP or shared experts, their words; and those of attention.
std::vector<std::string> adapter_words(const Model& model);

// The parameter of a module that peft.modules_to_save can name: embed_tokens or lm_head; with tied embeddings
// embed_tokens only.
struct SavedModule {
  const char* word;
  const char* param;
};
std::vector<SavedModule> saved_modules(const Model& model);

inline constexpr const char* kLoraA = ".lora_A.weight";
inline constexpr const char* kLoraB = ".lora_B.weight";
bool is_adapter(const std::string& param);
// What precedes kLoraA or kLoraB of an adapter's name: "decoder.layers.0.self_attention.q_proj".
std::string adapted_module(const std::string& param);
// <prefix>.<word>, the module of an adapter of the linear layer <prefix>.linear_...
std::string adapter_module(const std::string& linear, const std::string& word);

// The linear layer in whose output the adapter's rows lie, by its full name, and the box; nothing for a name that is
// no adapter of this model.
struct AdapterPlace {
  std::string linear;
  AdapterBox box;
};
std::optional<AdapterPlace> adapter_place(const Model& model, const std::string& module);

}  // namespace metroplex::config

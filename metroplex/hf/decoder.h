// What the families of decoders with rotary positions, RMSNorm and gated MLPs share, in transformers' names: the
// families differ in what they add.
#pragma once

#include <string>
#include <vector>

#include "hf/family.h"

namespace metroplex::hf {

extern const Family kDeepseekV2, kDeepseekV3, kGpt2, kLlama, kMixtral, kQwen2, kQwen3, kQwen3Moe;  // families/

// Reads keys of config.json; what is null counts as missing. Errors name the key.
class ConfigReader {
 public:
  explicit ConfigReader(const Json& config) : config_(config) {}
  bool has(const char* key) const { return config_.contains(key) && !config_.at(key).is_null(); }
  int64_t integer(const char* key) const;
  int64_t integer(const char* key, int64_t otherwise) const { return has(key) ? integer(key) : otherwise; }
  // 0 where it is null; `otherwise` where it is not there.
  int64_t integer_or_null(const char* key, int64_t otherwise) const;
  double number(const char* key, double otherwise) const;
  bool flag(const char* key, bool otherwise) const;
  std::string text(const char* key, const std::string& otherwise) const;
  // Throws where the key has another value than the one that is built here.
  void require(bool holds, const char* key, const std::string& wanted) const;
  const Json& json() const { return config_; }

 private:
  const Json& config_;
};

using Settings = std::vector<std::string>;
template <class Value>
void set(Settings& settings, const char* key, const Value& value);
std::string exact(double value);  // reads back to the same double

// Of sliding_window: it counts wherever it is said, or where use_sliding_window turns it on.
enum class Window { said, switched };
// Sizes, rotary positions, embeddings, of all such families.
Settings decoder_settings(const ConfigReader& config, Window window);
// The same without num_query_groups and kv_channels.
Settings decoder_settings_without_heads(const ConfigReader& config, Window window);
Json decoder_config(const config::Model& model);

struct DecoderNames {
  bool qkv_bias = false, output_bias = false, mlp_bias = false, qk_norm = false;
  // Of layers with experts: <layer>.<block>.experts.<e>.<gate|up|down>.weight and <layer>.<block>.gate.weight.
  std::string block = "mlp", gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string expert_bias = {};  // of the router, where it has one
};
std::vector<MappedTensor> decoder_tensors(const config::Model& model, const DecoderNames& names);

// Whether the model has RMSNorm, rotary positions over all that is rotated, and a gated SiLU MLP.
bool decoder_layers(const config::Model& model);
// The same with attention by query groups, rotated in halves, and without shared experts.
bool plain_decoder(const config::Model& model);
// The part that is all of ours, and all of theirs in the same order, where theirs has no dims of size 1 in front.
TensorPart whole_part(const std::string& name, const Dims& ours);
TensorPart rows_part(const std::string& name, const Dims& theirs, const Dims& offset, const Dims& size, int64_t row);

template <class Value>
void set(Settings& settings, const char* key, const Value& value) {
  std::string text;
  if constexpr (std::is_same_v<Value, bool>) text = value ? "true" : "false";
  else if constexpr (std::is_floating_point_v<Value>) text = exact(value);
  else if constexpr (std::is_arithmetic_v<Value>) text = std::to_string(value);
  else text = value;
  settings.push_back(std::string("model.") + key + "=" + text);
}

}  // namespace metroplex::hf

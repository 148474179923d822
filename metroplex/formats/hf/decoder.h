// Shared code of decoder families with rotary positions, RMSNorm and gated MLPs, with transformers' names. The files
// in families/ add the differences.
#pragma once

#include <string>
#include <vector>

#include "hf/family.h"

namespace metroplex::hf {

extern const Family kDeepseekV2, kDeepseekV3, kGemma2, kGemma3, kGpt2, kGptOss, kLlama, kMixtral, kQwen2, kQwen3,
    kQwen3Moe;  // families/

// Reads keys of config.json; null counts as missing. Errors name the key.
class ConfigReader {
 public:
  explicit ConfigReader(const Json& config) : config_(config) {}
  bool has(const char* key) const { return config_.contains(key) && !config_.at(key).is_null(); }
  int64_t integer(const char* key) const;
  int64_t integer(const char* key, int64_t otherwise) const { return has(key) ? integer(key) : otherwise; }
  // Returns 0 for null and `otherwise` for a missing key.
  int64_t integer_or_null(const char* key, int64_t otherwise) const;
  double number(const char* key, double otherwise) const;
  bool flag(const char* key, bool otherwise) const;
  std::string text(const char* key, const std::string& otherwise) const;
  // Throws if `holds` is false: the value of the key is not supported, `wanted` is.
  void require(bool holds, const char* key, const std::string& wanted) const;
  const Json& json() const { return config_; }

 private:
  const Json& config_;
};

using Settings = std::vector<std::string>;
template <class Value>
void set(Settings& settings, const char* key, const Value& value);
std::string exact(double value);  // reads back to the same double

// Returns `config` with `defaults` for its missing keys; a null key stays null.
Json add_defaults(const Json& config, Json defaults);
// "[0,1,1]"
std::string layer_pattern(const std::vector<bool>& layers);

// The meaning of sliding_window. refused: not supported. declared: used in the layers of layer_types, by default in
// all. switched: used if use_sliding_window is true, in the layers of layer_types or max_window_layers.
enum class Window { refused, declared, switched };
// Settings of layers with grouped-query attention and a gated SiLU MLP.
Settings decoder_settings(const ConfigReader& config, Window window);
// The same settings without num_query_groups and kv_channels.
Settings decoder_settings_without_heads(const ConfigReader& config, Window window);
// Returns num_hidden_layers; throws unless it is in 1 to 100000.
int64_t num_layers(const ConfigReader& config);
// The steps of decoder_settings. sizes_and_positions: sizes, rotary positions, embeddings, RMSNorm. add_heads:
// num_query_groups and kv_channels. add_windows: the windows of layer_types, or `otherwise`.
Settings sizes_and_positions(const ConfigReader& config);
void add_heads(const ConfigReader& config, Settings& settings);
void add_windows(const ConfigReader& config, const std::vector<bool>& otherwise, Settings& settings);

// The inverse functions, which write config.json.
Json decoder_config(const config::Model& model);
Json rope_config(const config::Model& model);
Json layer_types(const config::Model& model);
void add_switched_window(const config::Model& model, Json& json);

struct DecoderNames {
  bool qkv_bias = false, output_bias = false, mlp_bias = false, qk_norm = false;
  // MoE layers: <layer>.<block>.experts.<e>.<gate|up|down>.weight and <layer>.<block>.<router>.weight. With
  // joined_experts: <layer>.<block>.experts.gate_up_proj and down_proj, with biases.
  std::string block = "mlp", gate = "gate_proj", up = "up_proj", down = "down_proj", router = "gate";
  bool joined_experts = false;
  std::string expert_bias = {};  // of the router; empty: no bias
};
std::vector<MappedTensor> decoder_tensors(const config::Model& model, const DecoderNames& names);
constexpr int64_t kMaxMultiToken = 64;
// Returns the name prefix of a multi-token prediction layer, which is stored as one more layer.
std::string multi_token_prefix(int64_t layer);

// Whether the model has none of the rare features: attention scales, softcaps, sinks, extra norms, activation
// clamps.
bool has_usual_parts(const config::Model& model);
// Also requires RMSNorm, rotary positions with rotary_percent 1, and a gated SiLU MLP.
bool has_decoder_layers(const config::Model& model);
bool has_no_biases(const config::Model& model);
enum class Windows { none, allowed };
// Also requires no latent attention, non-interleaved rotation with one base, and no shared experts. `windows`:
// whether layers may have attention windows.
bool is_plain_decoder(const config::Model& model, Windows windows = Windows::none);
// Maps a whole tensor to one of theirs with the same elements in the same order. Leading dims of size 1 may be
// missing in theirs.
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

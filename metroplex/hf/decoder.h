// What the families of decoders with rotary positions, RMSNorm and gated MLPs share, in transformers' names: the
// families differ in what they add.
#pragma once

#include <string>
#include <vector>

#include "hf/family.h"

namespace metroplex::hf {

extern const Family kDeepseekV2, kDeepseekV3, kGemma2, kGemma3, kGpt2, kGptOss, kLlama, kMixtral, kQwen2, kQwen3,
    kQwen3Moe;  // families/

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

// `config` with `defaults` for the keys that it does not have; a key that is null stays null.
Json with_defaults(const Json& config, Json defaults);
// "[0,1,1]"
std::string layer_pattern(const std::vector<bool>& layers);

// Of sliding_window: it is refused, it counts in all layers, or where use_sliding_window turns it on, in those that
// layer_types or max_window_layers says.
enum class Window { refused, said, switched };
// Of layers whose attention is to query groups, with a gated SiLU MLP.
Settings decoder_settings(const ConfigReader& config, Window window);
// The same without num_query_groups and kv_channels.
Settings decoder_settings_without_heads(const ConfigReader& config, Window window);
// As many as model.num_layers takes.
int64_t num_layers(const ConfigReader& config);
// Its parts: sizes, rotary positions, embeddings, RMSNorm; num_query_groups and kv_channels; the windows of
// layer_types, or `otherwise`.
Settings sizes_and_positions(const ConfigReader& config);
void add_heads(const ConfigReader& config, Settings& settings);
void add_windows(const ConfigReader& config, const std::vector<bool>& otherwise, Settings& settings);

// What they read.
Json decoder_config(const config::Model& model);
Json rope_config(const config::Model& model);
Json layer_types(const config::Model& model);
void add_switched_window(const config::Model& model, Json& json);

struct DecoderNames {
  bool qkv_bias = false, output_bias = false, mlp_bias = false, qk_norm = false;
  // Of layers with experts: <layer>.<block>.experts.<e>.<gate|up|down>.weight and <layer>.<block>.<router>.weight; or
  // <layer>.<block>.experts.gate_up_proj and down_proj, with biases.
  std::string block = "mlp", gate = "gate_proj", up = "up_proj", down = "down_proj", router = "gate";
  bool joined_experts = false;
  std::string expert_bias = {};  // of the router, where it has one
};
std::vector<MappedTensor> decoder_tensors(const config::Model& model, const DecoderNames& names);
constexpr int64_t kMostMultiToken = 64;
// What the names of a layer of multi-token prediction begin with: it is one more layer, by number.
std::string multi_token_prefix(int64_t layer);

// Whether the model has no part of few families: scales and caps of scores, sinks, further norms, limits of units.
bool usual_parts(const config::Model& model);
// The same, RMSNorm, rotary positions over all that is rotated, and a gated SiLU MLP.
bool decoder_layers(const config::Model& model);
// No linear layer has a bias.
bool no_biases(const config::Model& model);
enum class Windows { none, allowed };
// The same with attention by query groups, rotated in halves, and without shared experts.
bool plain_decoder(const config::Model& model, Windows windows = Windows::none);
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

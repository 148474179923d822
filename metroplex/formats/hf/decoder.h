// Shared code of decoder families with rotary positions, with transformers' names. The files in families/ add the
// differences.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/model_function.h"
#include "hf/family.h"

namespace metroplex::hf {

// families/
extern const Family kArcee, kCohere2, kDeepseekV2, kDeepseekV3, kErnie45, kErnie45Moe, kGemma, kGemma2, kGemma3,
    kGlm4, kGlm4Moe, kGpt2, kGptOss, kGranite, kGraniteMoe, kHunYuanDense, kHunYuanMoe, kKimiK2, kLlama, kLlama4,
    kMamba2, kMiniMax, kMiniMaxM1, kMiniMaxM2, kMiniMaxText01, kMinistral3, kMistral, kMixtral, kNemotron, kNemotronH,
    kOlmo2, kOlmo3, kPhi3, kQwen2, kQwen2Moe, kQwen3, kQwen35, kQwen35Moe, kQwen3Moe, kQwen3Next, kSeedOss, kSmolLm3,
    kStarcoder2;

// Sets a key of section model; replaces an earlier value.
template <class Value>
void set(Settings& settings, const char* key, const Value& value);
void set_text(Settings& settings, const char* key, const std::string& value);
std::string exact(double value);  // reads back to the same double

using config::layer_pattern;
// Returns num_hidden_layers; throws unless it is in 1 to 100000.
int64_t num_layers(const ConfigReader& config);

// The steps of decoder_settings, and variants of them. PartialRope: whether the family reads partial_rotary_factor.
enum class PartialRope { refused, read };
Settings sizes_and_positions(const ConfigReader& config, PartialRope partial = PartialRope::refused,
                             const char* epsilon = "rms_norm_eps");
void add_activation(const ConfigReader& config, const char* key, const std::string& otherwise, Settings& settings);
// num_query_groups and kv_channels.
void add_heads(const ConfigReader& config, Settings& settings);
// Biases of the query/key/value projection, of the projection after attention, and of dense MLPs.
void add_biases(bool qkv, bool output, bool mlp, Settings& settings);
// Layers of the type `type` in layer_types, or `otherwise`. The other layers must be full_attention.
std::vector<bool> typed_layers(const ConfigReader& config, const char* type, const std::vector<bool>& otherwise);
// no_rope_layers: layers with rotary positions, by default all but each no_rope_layer_interval-th. Sets no_rope_freq.
std::vector<bool> add_rotated_layers(const ConfigReader& config, Settings& settings);
// The windows of layer_types, or `otherwise`.
void add_windows(const ConfigReader& config, const std::vector<bool>& otherwise, Settings& settings);
// With windows: the rotary base of their layers from rope_parameters, or `otherwise`.
void add_local_base(const ConfigReader& config, double otherwise, Settings& settings);
// The meaning of sliding_window. refused: not supported. declared: used in all layers. switched: used if
// use_sliding_window is true, in the layers of layer_types or max_window_layers.
enum class Window { refused, declared, switched };
void add_window(const ConfigReader& config, Window window, Settings& settings);
// Settings of layers with grouped-query attention, RMSNorm and gated MLPs.
Settings decoder_settings(const ConfigReader& config, Window window, PartialRope partial = PartialRope::refused);
// The same settings without num_query_groups and kv_channels.
Settings decoder_settings_without_heads(const ConfigReader& config, Window window,
                                        PartialRope partial = PartialRope::refused);
// The factor of the loss for balancing, if config.json turns it on.
void add_balancing(const ConfigReader& config, Settings& settings);
// moe_router_topk, with a softmax over the selected experts. One selected expert has the weight 1. Then the settings
// are those of sigmoid scores, divided by their sum: they have the same order, and the softmax is not supported.
void add_chosen_softmax(int64_t topk, Settings& settings);
// Layers with experts by decoder_sparse_step and mlp_only_layers.
std::string sparse_layers(const ConfigReader& config);
// Experts selected by a softmax in the layers of the pattern `layers`; all layers are dense if it has no 1.
// `experts`: the default number. `normalized`: the weights of the selected experts have the sum 1.
void add_softmax_experts(const ConfigReader& config, int64_t experts, const std::string& layers, bool normalized,
                         Settings& settings);
// Experts of DeepSeek-V3 and families with its router: dense first layers, shared experts, sigmoid scores.
struct SharedExpertDefaults {
  int64_t first_dense, experts, topk, width, shared;
  double scaling;
};
// Returns false if all layers are dense.
bool add_shared_experts(const ConfigReader& config, const SharedExpertDefaults& defaults, Settings& settings);
// n_group and topk_group, with these defaults; `best`: scores of a group that rank it.
void add_group_routing(const ConfigReader& config, int64_t groups, int64_t chosen, int64_t best, Settings& settings);
void add_sigmoid_routing(const ConfigReader& config, int64_t groups, int64_t chosen, Settings& settings);
// Layers of multi-token prediction: num_nextn_predict_layers.
void add_multi_token(const ConfigReader& config, int64_t otherwise, Settings& settings);
// Convolution and chunks of Mamba-2. `activation`: the key that names the activation.
void add_mamba(const ConfigReader& config, const char* activation, int64_t chunk_size, Settings& settings);
// The numbers of time_step_limit; 0 as the second for infinity.
std::pair<double, double> time_step_limits(const ConfigReader& config);

// The inverse functions, which write config.json.
Json decoder_config(const config::Model& model);
std::string activation_name(const config::Model& model);
Json rope_config(const config::Model& model);
// rope_parameters with an entry per layer type; windows have their own base.
Json rope_config_by_layer_type(const config::Model& model);
// `local`: the type of layers with a window or chunks.
Json layer_types(const config::Model& model, const char* local = "sliding_attention");
Json rotated_layers_config(const config::Model& model);  // no_rope_layers
// sliding_window, or null.
Json window_config(const config::Model& model);
void add_switched_window(const config::Model& model, Json& json);
void add_sparse_config(const config::Model& model, Json& json);
void add_shared_experts_config(const config::Model& model, Json& json);
bool normalizes_topk(const config::Model& model);
void add_mamba_config(const config::Model& model, Json& json);
// The value for infinity in files of transformers 5.
Json infinity();

struct DecoderNames {
  std::string model = "model", embedding = "embed_tokens", final_norm = "norm";
  std::string attention = "self_attn", mlp = "mlp";
  // Norms of a layer. The norms after attention and MLP exist with sandwich_norm.
  std::string input_norm = "input_layernorm", attention_norm = "post_attention_layernorm",
              mlp_input_norm = "post_attention_layernorm", mlp_norm = "post_feedforward_layernorm";
  bool fused_qkv = false;  // qkv_proj
  std::string q_norm = "q_norm", k_norm = "k_norm";
  // Gated delta nets: in_proj_qkvz and in_proj_ba by key head, instead of in_proj_qkv, in_proj_z, in_proj_b,
  // in_proj_a.
  bool fused_delta_net = false;
  // Dense MLPs. Without a gate only mlp_up and mlp_down exist. An empty mlp_gate: mlp_up stores both, the gate first.
  std::string mlp_gate = "gate_proj", mlp_up = "up_proj", mlp_down = "down_proj";
  // MoE layers: <layer>.<block>.<router>.weight and experts. separate:
  // <layer>.<block>.experts.<e>.<gate|up|down>.weight. columns: <layer>.<block>.experts.gate_up_proj and down_proj,
  // the gate first. interleaved_columns: alternating columns of gate and up, with biases. rows:
  // <layer>.<block>.<up|down>.weight for all experts, the gate first.
  enum class Experts { separate, columns, interleaved_columns, rows };
  Experts experts = Experts::separate;
  std::string block = "mlp", gate = "gate_proj", up = "up_proj", down = "down_proj", router = "gate";
  std::string expert_bias = "gate.e_score_correction_bias";  // in the block, with moe_router_enable_expert_bias
  bool expert_bias_rows = false;                             // stored as [1, experts]
  std::string shared = "shared_experts", shared_gate = "shared_expert_gate";  // in the block
};
std::vector<MappedTensor> decoder_tensors(const config::Model& model, const DecoderNames& names);
constexpr int64_t kMaxMultiToken = 64;
// Returns the name prefix of a multi-token prediction layer, which is stored as one more layer.
std::string multi_token_prefix(int64_t layer);

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
  set_text(settings, key, text);
}

}  // namespace metroplex::hf

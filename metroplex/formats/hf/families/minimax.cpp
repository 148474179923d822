// MiniMaxForCausalLM, arXiv 2501.08313: experts as in Mixtral, lightning attention in most layers, and residual
// connections that continue with the outputs of the norms. Files also contain the decays of lightning attention.
#include "hf/decoder.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/experts.h"
#include "config/layer_parts.h"
#include "config/lightning.h"

namespace metroplex::hf {
namespace minimax {

// Without layer_types: attn_type_list, with 0 for lightning attention, or every second layer.
static std::vector<bool> lightning_layers(const ConfigReader& config) {
  const Json& list = config.value("attn_type_list");
  const auto layers = static_cast<size_t>(num_layers(config));
  config.require(list.is_null() || (list.is_array() && list.size() == layers), "attn_type_list",
                 "a list of 0 and 1, one per layer");
  std::vector<bool> otherwise;
  for (size_t i = 0; i < layers; ++i) {
    if (list.is_array()) config.require(list[i] == 0 || list[i] == 1, "attn_type_list", "a list of 0 and 1");
    otherwise.push_back(list.is_array() ? list[i] == 0 : i % 2 == 1);
  }
  return typed_layers(config, "linear_attention", otherwise);
}

// Returns whether a layer has lightning attention.
static bool add_lightning(const ConfigReader& config, Settings& settings) {
  const std::vector<bool> linear = lightning_layers(config);
  const bool any = std::find(linear.begin(), linear.end(), true) != linear.end();
  const int64_t chunk = config.integer("block_size", 256);
  config.require(chunk > 0, "block_size", "a number above 0");
  if (!any) return false;
  config.require(config.text("hidden_act", "silu") == "silu", "hidden_act", "silu");
  set(settings, "experimental_attention_variant", "lightning_attention");
  set(settings, "linear_attention_freq", layer_pattern(linear));
  set(settings, "lightning_chunk_size", chunk);
  return true;
}

// alpha: factor of the residual stream; beta: factor of the result. `older`: their names in the files of MiniMaxAI.
static void add_factors(const ConfigReader& config, const std::string& layers, const std::string& older,
                        const std::string& ours, bool exists, Settings& settings) {
  for (const auto& [letter, key] :
       {std::pair{"alpha", "residual_stream_multiplier"}, {"beta", "residual_multiplier"}}) {
    const std::string name = layers + "_" + letter + "_factor", old_name = "layernorm_" + older + "_" + letter;
    const double value = config.number(name.c_str(), config.number(old_name.c_str(), 1.0));
    config.require(value > 0, config.has(name.c_str()) ? name.c_str() : old_name.c_str(), "a number above 0");
    if (exists) set(settings, (key + ours).c_str(), value);
  }
}

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"num_key_value_heads", 8},
                       {"max_position_embeddings", 131072},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 1e6},
                       {"num_local_experts", 8}});
  // Keys of files of MiniMaxAI. Only the first rotary_dim channels of a head rotate.
  const int64_t heads = std::max<int64_t>(1, config.integer("num_attention_heads")),
                head_dim = config.integer("head_dim", config.integer("hidden_size") / heads);
  if (config.has("rotary_dim") && head_dim > 0)
    config.add_defaults({{"partial_rotary_factor",
                          static_cast<double>(config.integer("rotary_dim")) / static_cast<double>(head_dim)}});
  config.require(config.flag("postnorm", true), "postnorm", "true");
  config.require(config.integer("shared_intermediate_size", 0) == 0, "shared_intermediate_size", "0");
  config.ignore({"shared_moe_mode"});
  Settings settings = decoder_settings(config, Window::refused, PartialRope::read);
  add_biases(false, false, false, settings);
  set(settings, "apply_residual_connection_post_layernorm", true);
  const bool lightning = add_lightning(config, settings);
  add_factors(config, "full_attn", "full_attention", "", true, settings);
  add_factors(config, "linear_attn", "linear_attention", "_linear", lightning, settings);
  add_factors(config, "mlp", "mlp", "_mlp", true, settings);
  set(settings, "num_moe_experts", config.integer("num_local_experts"));
  add_chosen_softmax(config.integer("num_experts_per_tok", 2), settings);
  set(settings, "moe_ffn_hidden_size", config.integer("intermediate_size"));
  set(settings, "moe_input_jitter_eps", config.number("router_jitter_noise", 0));
  add_balancing(config, settings);
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) {
  return decoder_tensors(m, {.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"});
}

// The slopes of a layer with the roundings of transformers, which computes them in float32.
static std::vector<float> slopes(const config::Model& m, int64_t layer) {
  const config::LightningDecay decay(m, layer);
  std::vector<float> values;
  for (int64_t head = 0; head < m.num_attention_heads; ++head) {
    const auto base = static_cast<double>(static_cast<float>(decay.base));
    values.push_back(static_cast<float>(std::pow(base, static_cast<double>(head + 1))) *
                     static_cast<float>(decay.factor));
  }
  return values;
}

// exp(-slope distance(row, column)) for each head, or 0 for a distance below 0.
template <class Distance>
static std::vector<float> decays(const config::Model& m, int64_t layer, int64_t columns, const Distance& distance) {
  std::vector<float> values;
  for (const float slope : slopes(m, layer)) {
    for (int64_t row = 0; row < m.lightning_chunk_size; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t steps = distance(row, column);
        const float exponent = -(slope * static_cast<float>(steps));
        values.push_back(steps < 0 ? 0 : static_cast<float>(std::exp(static_cast<double>(exponent))));
      }
    }
  }
  return values;
}

static std::vector<Constant> constants(const config::Model& m) {
  std::vector<Constant> all;
  const int64_t heads = m.num_attention_heads, chunk = m.lightning_chunk_size;
  for (int64_t layer = 0; layer < m.num_layers; ++layer) {
    if (!config::parts_of_layer(m, layer).lightning) continue;
    const std::string prefix = base::concat("model.layers.", layer, ".self_attn.");
    const auto add_decays = [&](const char* name, std::vector<int64_t> shape, const auto& distance) {
      const int64_t columns = shape.back();
      all.push_back({prefix + name, std::move(shape),
                     [m, layer, columns, distance] { return decays(m, layer, columns, distance); }});
    };
    all.push_back({prefix + "slope_rate", {heads, 1, 1}, [m, layer] { return slopes(m, layer); }});
    add_decays("query_decay", {heads, chunk, 1}, [](int64_t row, int64_t) { return row + 1; });
    add_decays("key_decay", {heads, chunk, 1}, [chunk](int64_t row, int64_t) { return chunk - row - 1; });
    add_decays("diagonal_decay", {1, heads, chunk, chunk}, [](int64_t row, int64_t column) { return row - column; });
  }
  return all;
}

static void write_factors(const config::ResidualFactors& factors, const std::string& layers, Json& json) {
  json[layers + "_alpha_factor"] = factors.stream;
  json[layers + "_beta_factor"] = factors.result;
}

static Json make_config(const config::Model& m) {
  Json json = decoder_config(m);
  if (m.rotary_percent != 1)
    json["rotary_dim"] = static_cast<int64_t>(std::lround(m.rotary_percent * json.at("head_dim").get<double>()));
  json["layer_types"] = layer_types(m);
  json["block_size"] = m.lightning_chunk_size;
  write_factors(config::mixer_residual(m, {.attention = true}), "full_attn", json);
  write_factors(config::mixer_residual(m, {.lightning = true}), "linear_attn", json);
  write_factors(config::mlp_residual(m), "mlp", json);
  json["intermediate_size"] = config::expert_ffn_width(m);
  json["num_local_experts"] = m.num_moe_experts;
  json["num_experts_per_tok"] = m.moe_router_topk;
  json["router_jitter_noise"] = m.moe_input_jitter_eps;
  json["output_router_logits"] = false;
  return json;
}

}  // namespace minimax

static constexpr Family minimax_family(const char* model_type, const char* written_as) {
  return {.model_type = model_type,
          .architecture = "MiniMaxForCausalLM",
          .settings = minimax::settings,
          .tensors = minimax::tensors,
          .config = minimax::make_config,
          .written_as = written_as,
          .constants = minimax::constants};
}

const Family kMiniMax = minimax_family("minimax", nullptr);
// The types of the files of MiniMaxAI, whose config.json has other keys.
const Family kMiniMaxText01 = minimax_family("minimax_text_01", "minimax");
const Family kMiniMaxM1 = minimax_family("minimax_m1", "minimax");

}  // namespace metroplex::hf

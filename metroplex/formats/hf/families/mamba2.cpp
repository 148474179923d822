// Mamba2ForCausalLM, arXiv 2405.21060: every layer is a Mamba-2 layer.
#include "hf/decoder.h"

#include "config/layer_parts.h"

namespace metroplex::hf {
namespace mamba2 {

constexpr int64_t kPositions = 1 << 20;  // the family has no limit

static const DecoderNames& names() {
  static const DecoderNames kNames{
      .model = "backbone", .embedding = "embeddings", .final_norm = "norm_f", .input_norm = "norm"};
  return kNames;
}

static Settings settings(ConfigReader& config) {
  config.add_defaults({{"hidden_size", 4096},
                       {"num_hidden_layers", 64},
                       {"vocab_size", 32768},
                       {"num_heads", 128},
                       {"initializer_range", 0.1},
                       {"intermediate_size", 0},
                       {"max_position_embeddings", kPositions}});
  const int64_t hidden = config.integer("hidden_size"), heads = config.integer("num_heads"),
                head_dim = config.integer("head_dim", 64);
  config.require(config.number("expand", 2) * static_cast<double>(hidden) == static_cast<double>(heads * head_dim),
                 "expand", "num_heads * head_dim / hidden_size");
  config.require(config.flag("rms_norm", true), "rms_norm", "true");
  config.add_defaults({{"num_attention_heads", heads}});  // no layer has attention
  Settings settings = sizes_and_positions(config, PartialRope::refused, "layer_norm_epsilon");
  set(settings, "layernorm_epsilon", config.number("layer_norm_epsilon", 1e-5));
  set(settings, "position_embedding_type", "none");
  set(settings, "kv_channels", head_dim);
  set(settings, "gated_linear_unit", false);
  set(settings, "add_bias_linear", false);
  set(settings, "hybrid_layer_pattern", std::string(static_cast<size_t>(num_layers(config)), 'M'));
  set(settings, "mamba_num_heads", heads);
  set(settings, "mamba_head_dim", head_dim);
  set(settings, "mamba_num_groups", config.integer("n_groups", 8));
  set(settings, "mamba_state_dim", config.integer("state_size", 128));
  set(settings, "mamba_proj_bias", config.flag("use_bias", false));
  add_mamba(config, "hidden_act", 256, settings);
  const auto [least, most] = time_step_limits(config);
  set(settings, "mamba_dt_min", least);
  set(settings, "mamba_dt_max", most);
  // Initial values, and the format of the residual stream.
  config.ignore({"rescale_prenorm_residual", "residual_in_fp32", "time_step_floor", "time_step_max", "time_step_min",
                 "time_step_rank"});
  return settings;
}

static std::vector<MappedTensor> tensors(const config::Model& m) { return decoder_tensors(m, names()); }

static Json make_config(const config::Model& m) {
  const int64_t heads = config::mamba_heads(m), inner = heads * m.mamba_head_dim;
  Json json{
      {"hidden_size", m.hidden_size},
      {"num_hidden_layers", m.num_layers},
      {"vocab_size", m.vocab_size},
      {"layer_norm_epsilon", m.layernorm_epsilon},
      {"tie_word_embeddings", m.tied()},
      {"initializer_range", m.init_method_std},
      {"num_heads", heads},
      {"head_dim", m.mamba_head_dim},
      {"n_groups", m.mamba_num_groups},
      {"state_size", m.mamba_state_dim},
      {"expand", inner % m.hidden_size == 0 ? Json(inner / m.hidden_size)
                                            : Json(static_cast<double>(inner) / static_cast<double>(m.hidden_size))},
      {"hidden_act", "silu"},
      {"residual_in_fp32", true},
      {"use_bias", m.mamba_proj_bias},
      {"use_cache", true}};
  add_mamba_config(m, json);
  json["time_step_limit"] = {m.mamba_dt_min, m.mamba_dt_max > 0 ? Json(m.mamba_dt_max) : infinity()};
  return json;
}

}  // namespace mamba2

const Family kMamba2{"mamba2", "Mamba2ForCausalLM", mamba2::settings, mamba2::tensors, mamba2::make_config};

}  // namespace metroplex::hf

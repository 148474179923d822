// Rules for attention, positions and layer components.
#include "config/rules.h"

#include <algorithm>
#include <string_view>

#include "config/experts.h"
#include "config/family.h"
#include "config/layer_parts.h"

namespace metroplex::config {

using base::concat;

namespace {

constexpr std::string_view kLatentKeys[] = {"q_lora_rank",         "kv_lora_rank", "qk_head_dim",
                                            "qk_pos_emb_head_dim", "v_head_dim",   "latent_layernorm_epsilon"};
constexpr std::string_view kYarnKeys[] = {"rotary_scaling_factor",
                                          "original_max_position_embeddings",
                                          "beta_fast",
                                          "beta_slow",
                                          "yarn_correction_range_round_to_int",
                                          "mscale",
                                          "mscale_all_dim",
                                          "yarn_attention_factor"};
constexpr std::string_view kLongropeKeys[] = {"longrope_short_factor", "longrope_long_factor"};

bool of_latents(std::string_view name) {
  return std::find(std::begin(kLatentKeys), std::end(kLatentKeys), name) != std::end(kLatentKeys);
}
bool of_yarn(std::string_view name) {
  return std::find(std::begin(kYarnKeys), std::end(kYarnKeys), name) != std::end(kYarnKeys);
}
bool of_longrope(std::string_view name) {
  return std::find(std::begin(kLongropeKeys), std::end(kLongropeKeys), name) != std::end(kLongropeKeys);
}
bool of_yarn_without_longrope(std::string_view name) {
  return of_yarn(name) && name != "rotary_scaling_factor" && name != "original_max_position_embeddings" &&
         name != "yarn_attention_factor";
}
// The softmax scale of latent attention uses mscale_all_dim and rotary_scaling_factor with any rope_type.
bool of_yarn_alone(std::string_view name) {
  return of_yarn(name) && name != "rotary_scaling_factor" && name != "mscale_all_dim";
}

void check_latent(Rules& rules) {
  const Model& m = rules.config.model;
  static constexpr const char* kSwitch = "model.multi_latent_attention";
  if (!m.multi_latent_attention) return refuse_without(rules, kSwitch, of_latents);
  rules.require(m.num_query_groups == 0 || m.num_query_groups == m.num_attention_heads, "model.num_query_groups",
                m.num_query_groups, concat("has no meaning with ", kSwitch, ": every head has its own keys"),
                "leave it 0");
  rules.require_effect(m.kv_channels == 0, "model.kv_channels", m.kv_channels,
                       concat("has no meaning with ", kSwitch,
                              ", whose heads are as wide as model.qk_head_dim + model.qk_pos_emb_head_dim"),
                       "leave it 0");
  rules.require(m.position_embedding_type == PositionEmbedding::rope, "model.position_embedding_type",
                m.position_embedding_type, concat("must be rope with ", kSwitch), "set it to rope");
  rules.require(m.qk_pos_emb_head_dim % 2 == 0, "model.qk_pos_emb_head_dim", m.qk_pos_emb_head_dim, "must be even",
                "add or remove one");
  rules.require(m.rotary_percent == 1, "model.rotary_percent", m.rotary_percent,
                concat("must be 1 with ", kSwitch, ", where model.qk_pos_emb_head_dim sets the rotated width"),
                "leave it out");
  const Family* const family = find_family(m.family);
  rules.require(family == nullptr || !family->top_query, "model.family", m.family,
                concat("excludes ", kSwitch, ": its last layer does not compute queries from its input"),
                "use another family");
}

void check_longrope(Rules& rules) {
  const Model& m = rules.config.model;
  if (!m.longrope()) return refuse_without(rules, "model.rope_type = longrope", of_longrope);
  const bool fits = m.position_embedding_type == PositionEmbedding::rope && !m.multi_latent_attention &&
                    !m.use_rope_scaling && m.original_max_position_embeddings > 1;
  rules.require(fits, "model.rope_type", m.rope_type,
                "needs model.position_embedding_type = rope and model.original_max_position_embeddings above 1, and "
                "excludes model.multi_latent_attention and model.use_rope_scaling",
                "set these keys, or use another rope_type");
  const int64_t width = m.kv_channels > 0 ? m.kv_channels : m.hidden_size / m.num_attention_heads;
  const auto pairs = static_cast<size_t>(static_cast<double>(width) * m.rotary_percent) / 2;
  for (const auto& [key, text] : {std::pair{"model.longrope_short_factor", m.longrope_short_factor},
                                  {"model.longrope_long_factor", m.longrope_long_factor}}) {
    std::string problem;
    const auto factors = read_coefficients(text, problem);
    const bool reads = factors && factors->size() == pairs && *std::min_element(factors->begin(), factors->end()) > 0;
    rules.require(reads, key, text, concat("must have ", pairs, " numbers above 0, one per rotated pair of channels"),
                  "write them with commas between");
  }
}

// Whether any layer has rotary positions (true) or none (false).
bool any_layer_rotates(const Model& m, bool rotates) {
  std::string problem;
  const auto layers = read_rope_layers(m.no_rope_freq, m.num_layers, problem);
  return layers && std::find(layers->begin(), layers->end(), rotates) != layers->end();
}

void check_query_scaling(Rules& rules) {
  const Model& m = rules.config.model;
  const double beta = m.query_scaling_beta;
  static constexpr const char* kFloor = "model.query_scaling_floor";
  rules.require_effect(beta == 0 || m.yarn() || m.query_scaling_floor > 0, "model.query_scaling_beta", beta,
                       concat("has no effect without model.rope_type = yarn or ", kFloor),
                       "leave it out, or set one of them");
  rules.require(m.query_scaling_floor == 0 || (beta > 0 && any_layer_rotates(m, false)), kFloor,
                m.query_scaling_floor, "needs model.query_scaling_beta, and layers in model.no_rope_freq",
                "leave it 0");
  if (beta == 0 || (!m.yarn() && m.query_scaling_floor == 0)) return;
  const bool fits = !m.multi_latent_attention && m.rotary_percent == 1 && !m.qk_layernorm_after_rope &&
                    !rules.config.data.reset_position_ids;
  rules.require(fits, "model.query_scaling_beta", beta,
                "needs model.rotary_percent = 1, and excludes model.multi_latent_attention, "
                "model.qk_layernorm_after_rope and data.reset_position_ids",
                "leave it 0");
}

void check_frequencies(Rules& rules) {
  const Model& m = rules.config.model;
  const bool rope = m.position_embedding_type == PositionEmbedding::rope;
  if (!m.yarn()) {
    const bool scales_softmax = m.multi_latent_attention && m.mscale_all_dim != 0;
    refuse_without(rules, "model.rope_type = yarn",
                   m.longrope()     ? of_yarn_without_longrope
                   : scales_softmax ? of_yarn_alone
                                    : of_yarn);
  } else {
    rules.require(rope, "model.rope_type", m.rope_type, "needs model.position_embedding_type = rope",
                  "use rope, or set model.rope_type to rope");
    rules.require(!m.use_rope_scaling, "model.use_rope_scaling", "true",
                  "excludes yarn (model.rope_type, which is auto with model.multi_latent_attention)",
                  "turn it off, or set model.rope_type to rope");
    rules.require(m.beta_fast >= m.beta_slow, "model.beta_fast", m.beta_fast,
                  concat("must be at least model.beta_slow = ", number_text(m.beta_slow)), "raise it");
  }
  rules.require_effect(rope || !m.rotary_interleaved, "model.rotary_interleaved", "true",
                       "needs model.position_embedding_type = rope", "leave it out");
  rules.require_effect(rope || m.rotary_seq_len_interpolation_factor == 1,
                       "model.rotary_seq_len_interpolation_factor", m.rotary_seq_len_interpolation_factor,
                       "needs model.position_embedding_type = rope", "leave it out");
}

void check_window(Rules& rules) {
  const Model& m = rules.config.model;
  static constexpr const char* kLayers = "model.window_attn_skip_freq";
  const Family* const family = find_family(m.family);
  static constexpr const char* kNeeds = "has no effect without model.window_size or model.attention_chunk_size";
  if (!m.has_local_attention()) {
    rules.require_effect(m.window_attn_skip_freq.empty(), kLayers, m.window_attn_skip_freq, kNeeds,
                         "leave it out, or give the window");
    rules.require_effect(m.rotary_base_local == 0, "model.rotary_base_local", m.rotary_base_local, kNeeds,
                         "leave it out, or give the window");
    return;
  }
  rules.require(!m.has_window() || m.attention_chunk_size == 0, "model.attention_chunk_size", m.attention_chunk_size,
                "excludes model.window_size", "leave one of them out");
  std::string problem;
  const bool reads = read_window_layers(m.window_attn_skip_freq, m.num_layers, problem).has_value();
  rules.require(reads, kLayers, m.window_attn_skip_freq, "must define which layers have the window, but " + problem,
                "write N for all but every N-th layer, or one 0 or 1 a layer, like [1,0] or [1]*5+[0]");
  rules.require(m.rotary_base_local == 0 || m.position_embedding_type == PositionEmbedding::rope,
                "model.rotary_base_local", m.rotary_base_local, "needs model.position_embedding_type = rope",
                "leave it 0");
  rules.require(family == nullptr || !family->top_query, "model.family", m.family,
                "excludes model.window_size and model.attention_chunk_size: its last layer does not define them",
                "use another family");
}

void check_rope_layers(Rules& rules) {
  const Model& m = rules.config.model;
  static constexpr const char* kKey = "model.no_rope_freq";
  if (m.no_rope_freq.empty()) return;
  std::string problem;
  const bool reads = read_rope_layers(m.no_rope_freq, m.num_layers, problem).has_value();
  rules.require(reads, kKey, m.no_rope_freq, "must define which layers have no rotary positions, but " + problem,
                "write N for every N-th layer, or one 0 or 1 a layer, like [0,0,0,1]");
  rules.require(
      m.position_embedding_type == PositionEmbedding::rope && !m.multi_latent_attention, kKey, m.no_rope_freq,
      "needs model.position_embedding_type = rope, and excludes model.multi_latent_attention", "leave it out");
  rules.require(m.mtp_num_layers == 0, kKey, m.no_rope_freq,
                "excludes model.mtp_num_layers: the positions of these layers are not defined",
                "leave one of them out");
}

void check_qk_norm(Rules& rules) {
  const Model& m = rules.config.model;
  const bool per_token = m.qk_layernorm && !m.multi_latent_attention;
  rules.require(!m.qk_layernorm_all_heads || (per_token && m.normalization == Normalization::RMSNorm),
                "model.qk_layernorm_all_heads", "true",
                "needs model.qk_layernorm and model.normalization = RMSNorm, and excludes "
                "model.multi_latent_attention",
                "turn it off");
  const bool rope = m.position_embedding_type == PositionEmbedding::rope;
  rules.require(!m.qk_layernorm_after_rope || (per_token && rope), "model.qk_layernorm_after_rope", "true",
                "needs model.qk_layernorm and model.position_embedding_type = rope, and excludes "
                "model.multi_latent_attention",
                "turn it off");
  const bool plain_rope = rope && !m.yarn() && !m.longrope() && any_layer_rotates(m, true);
  rules.require(
      !m.qk_l2_norm || (plain_rope && !m.qk_layernorm && !m.multi_latent_attention), "model.qk_l2_norm", "true",
      "needs model.position_embedding_type = rope, model.rope_type = rope and a layer with rotary positions, and "
      "excludes model.qk_layernorm and model.multi_latent_attention",
      "turn it off");
}

void check_softmax(Rules& rules) {
  const Model& m = rules.config.model;
  if (m.softmax_type == SoftmaxType::vanilla) return;
  const std::vector<std::string> ways = comma_list(rules.config.parallel.cp_comm_type);
  const bool heads_travel =
      std::any_of(ways.begin(), ways.end(), [](const std::string& way) { return way.starts_with("a2a"); });
  const bool shared = rules.config.parallel.cp() > 1 || rules.config.parallel.hybrid_context_parallel;
  rules.require(!shared || !heads_travel, "model.softmax_type", m.softmax_type,
                "excludes parallel.cp_comm_type = a2a and a2a+p2p", "use p2p or all_gather");
}

void check_layer_parts(Rules& rules) {
  const Model& m = rules.config.model;
  rules.require(!m.sandwich_norm || !m.has_experts(), "model.sandwich_norm", "true",
                "excludes experts (model.num_moe_experts)", "turn it off");
  rules.require_effect(m.add_norm_bias || m.normalization == Normalization::LayerNorm, "model.add_norm_bias", "false",
                       "has no effect with model.normalization = RMSNorm", "leave it out");
  rules.require(!m.parallel_attention_mlp || (!m.has_experts() && !m.sandwich_norm), "model.parallel_attention_mlp",
                "true", "excludes experts (model.num_moe_experts) and model.sandwich_norm", "turn it off");
  rules.require(!m.parallel_attention_mlp || !rules.config.train.captures_parts(), "model.parallel_attention_mlp",
                "true", "excludes graphs of parts of layers (train.cuda_graph_impl)",
                "use train.cuda_graph_impl = full_iteration or none");
  rules.require(m.pre_norm || m.sandwich_norm, "model.pre_norm", "false", "needs model.sandwich_norm",
                "set model.sandwich_norm, or leave it true");
  const Family* const family = find_family(m.family);
  rules.require(!m.sandwich_norm || family == nullptr || !family->top_query, "model.sandwich_norm", "true",
                concat("excludes model.family = ", m.family), "turn it off, or use another family");
  rules.require(!m.parallel_attention_mlp || family == nullptr || !family->top_query, "model.parallel_attention_mlp",
                "true", concat("excludes model.family = ", m.family), "turn it off, or use another family");
  static constexpr const char* kUnits = "has no effect without model.gated_linear_unit";
  rules.require_effect(m.gated_linear_unit || m.activation_func_clamp_value == 0, "model.activation_func_clamp_value",
                       m.activation_func_clamp_value, kUnits, "leave it 0, or turn the gate on");
  rules.require(m.gated_linear_unit || m.glu_linear_offset == 0, "model.glu_linear_offset", m.glu_linear_offset,
                kUnits, "leave it 0, or turn the gate on");
}

void check_residual(Rules& rules) {
  const Model& m = rules.config.model;
  rules.require(!m.apply_residual_connection_post_layernorm || m.pre_norm,
                "model.apply_residual_connection_post_layernorm", "true",
                "needs model.pre_norm: the residual stream is the output of these norms",
                "turn it off, or turn pre_norm on");
  const bool linear = any_layer_has(m, &LayerParts::delta_net) || any_layer_has(m, &LayerParts::lightning);
  const bool feeds = any_layer_has(m, &LayerParts::mlp) || any_layer_has(m, &LayerParts::experts);
  const auto check = [&](const char* key, double value, bool has_layer, const char* layer) {
    rules.require(value == 0 || has_layer, key, value, concat("has no effect without ", layer), "leave it 0");
    rules.require(value == 0 || !m.parallel_attention_mlp, key, value,
                  "excludes model.parallel_attention_mlp, whose results are added together", "leave it 0");
  };
  check("model.residual_multiplier_linear", m.residual_multiplier_linear, linear, "layers with linear attention");
  check("model.residual_stream_multiplier_linear", m.residual_stream_multiplier_linear, linear,
        "layers with linear attention");
  check("model.residual_multiplier_mlp", m.residual_multiplier_mlp, feeds, "an MLP or experts");
  check("model.residual_stream_multiplier_mlp", m.residual_stream_multiplier_mlp, feeds, "an MLP or experts");
}

void check_multi_token(Rules& rules) {
  const Model& m = rules.config.model;
  static constexpr const char* kKey = "model.mtp_num_layers";
  if (m.mtp_num_layers == 0)
    return refuse_without(rules, kKey, [](std::string_view name) { return name == "mtp_loss_scaling_factor"; });
  const auto excludes = [&](bool holds, const std::string& what, const char* fix) {
    rules.require(holds, kKey, m.mtp_num_layers, "excludes " + what, fix);
  };
  const Family* const family = find_family(m.family);
  excludes(family == nullptr || !family->top_query, concat("model.family = ", m.family), "use another family");
  excludes(m.position_embedding_type != PositionEmbedding::learned_absolute,
           "model.position_embedding_type = learned_absolute", "use rope or none");
  excludes(!rules.config.parallel.hybrid_context_parallel,
           "parallel.hybrid_context_parallel: the ranks that hold the following tokens differ between microbatches",
           "use parallel.context_parallel_size");
  excludes(!m.moe_paged_stash, "model.moe_paged_stash", "turn it off");
  rules.require(m.mtp_num_layers < rules.config.train.seq_length, kKey, m.mtp_num_layers,
                "must be below " + key_is("train.seq_length", rules.config.train.seq_length),
                "use fewer, or longer sequences");
}

}  // namespace

void check_attention(Rules& rules) {
  check_latent(rules);
  check_frequencies(rules);
  check_window(rules);
  check_rope_layers(rules);
  check_longrope(rules);
  check_query_scaling(rules);
  check_qk_norm(rules);
  check_softmax(rules);
  check_layer_parts(rules);
  check_residual(rules);
  check_multi_token(rules);
}

}  // namespace metroplex::config

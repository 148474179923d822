// Rules for experts beyond Megatron's TransformerConfig (rules_transformer_experts.cpp): restrictions in other parts
// of Megatron, and settings without effect.
#include "config/rules.h"

#include <algorithm>

#include "config/derived.h"
#include "config/experts.h"

namespace metroplex::config {

using base::concat;

namespace {

// Rejects MoE keys in a dense model. parallel.expert_tensor_parallel_size is exempt, because resolved() sets it.
void check_dense(Rules& rules) {
  for (const auto& [key, name, value] : rules.changed) {
    const bool experts = name.rfind("moe_", 0) == 0 || name == "expert_ranks_per_node" ||
                         name == "expert_trace_file" || name == "log_experts_interval";
    if (!experts) continue;
    rules.require_effect(false, key.c_str(), value,
                         "has no meaning in a model without experts (model.num_moe_experts = 0)",
                         "leave it out, or give the model experts");
    // Megatron rejects an expert width unless moe_layer_freq leaves dense layers.
    if (name == "moe_ffn_hidden_size" && rules.config.model.moe_layer_freq == Model().moe_layer_freq)
      rules.list.back().without_effect = false;
  }
  const Parallel& parallel = rules.config.parallel;
  rules.require_effect(parallel.etp() == parallel.tp(), "parallel.expert_tensor_parallel_size", parallel.etp(),
                       concat("must be 0 or ", key_is("parallel.tensor_model_parallel_size", parallel.tp()),
                              " in a model without experts (model.num_moe_experts = 0)"),
                       "set it to 0, or give the model experts");
  for (const std::string& module : rules.config.memory.recompute_modules) {
    rules.require(module != "moe" && module != "shared_experts", "memory.recompute_modules", module,
                  "does not exist in a model without experts (model.num_moe_experts = 0)", "leave it out");
  }
}

void check_static_buffer(Rules& rules) {
  const Model& m = rules.config.model;
  static constexpr const char *kFactor = "model.moe_expert_rank_capacity_factor",
                              *kPair = "model.moe_rank_pair_capacity_factor", *kPolicy = "model.moe_overflow_policy";
  const Choice<TokenDispatcher> dispatcher = m.moe_token_dispatcher_type;
  const double factor = m.moe_expert_rank_capacity_factor, pair = m.moe_rank_pair_capacity_factor;
  if (dispatcher != TokenDispatcher::static_buffer) {
    const std::string rule = "is for model.moe_token_dispatcher_type = static_buffer, not " + dispatcher;
    rules.require(factor == 0, kFactor, factor, rule, "leave it out, or use static_buffer");
    rules.require(pair == 0, kPair, pair, rule, "leave it out, or use static_buffer");
    rules.require(m.moe_overflow_policy == OverflowPolicy::redo, kPolicy, m.moe_overflow_policy, rule,
                  "leave it out, or use static_buffer");
    return;
  }
  static constexpr const char* kLess = "a buffer smaller than the even load overflows in every step";
  rules.require(factor >= 1, kFactor, factor,
                concat("must be at least 1 with model.moe_token_dispatcher_type = static_buffer: ", kLess),
                "give the largest supported load as a multiple of the mean, such as 1.5, or use alltoall");
  rules.require(pair == 0 || pair >= 1, kPair, pair, concat("must be 0 or at least 1: ", kLess),
                "set it to 0, or to 1 or more");
  rules.require(!pads_to_capacity(m), "model.moe_pad_expert_input_to_capacity", "true",
                "has no meaning with model.moe_token_dispatcher_type = static_buffer, whose sizes are fixed already",
                "turn it off, or use alltoall");
}

void check_row_formats(Rules& rules) {
  constexpr int64_t kBlock = 32;  // kernels::kRowBlock
  const Model& m = rules.config.model;
  const int64_t width = expert_row_width(m);
  for (const auto& [key, format] : {std::pair("model.moe_dispatch_fwd_dtype", m.moe_dispatch_fwd_dtype),
                                    std::pair("model.moe_combine_bwd_dtype", m.moe_combine_bwd_dtype)}) {
    rules.require(
        format == RowDtype::params || width % kBlock == 0, key, format,
        concat("needs rows of a multiple of ", kBlock, " values, but they have ", width),
        concat("change model.", m.moe_latent_size > 0 ? "moe_latent_size" : "hidden_size", ", or set it to params"));
  }
}

void check_paged_stash(Rules& rules) {
  const Model& m = rules.config.model;
  static constexpr const char* kStash = "model.moe_paged_stash";
  if (!m.moe_paged_stash) return refuse_without(rules, kStash, is_stash_key);
  rules.require(m.moe_token_dispatcher_type == TokenDispatcher::static_buffer, kStash, "true",
                "is for model.moe_token_dispatcher_type = static_buffer, not " + m.moe_token_dispatcher_type +
                    ": only its buffers are larger than the received rows",
                "turn it off, or use static_buffer");
  rules.require(m.moe_overflow_policy != OverflowPolicy::drop, "model.moe_overflow_policy", m.moe_overflow_policy,
                concat("excludes ", kStash, ": a row that backward needs cannot be dropped"),
                "use redo or stop, or turn moe_paged_stash off");
  const Memory& memory = rules.config.memory;
  rules.require(memory.offload_activations == Offload::none, "memory.offload_activations", memory.offload_activations,
                concat("excludes ", kStash, ", whose pages cannot be offloaded"),
                "set it to none; model.moe_paged_stash_buffer_size_factor_cpu uses host memory instead");
  rules.require(!memory.recomputes("moe"), kStash, "true",
                "has no effect with moe in memory.recompute_modules: backward stores no rows of experts",
                "turn it off, or recompute moe_act instead");
}

void check_expert_ranks(Rules& rules) {
  const Model& m = rules.config.model;
  const Parallel& parallel = rules.config.parallel;
  const int64_t etp = parallel.etp(), ep = parallel.ep(), layer = etp * ep, all = layer * parallel.pp();
  const std::string both = concat(key_is("parallel.expert_tensor_parallel_size", etp), ", ",
                                  key_is("parallel.expert_model_parallel_size", ep));
  rules.require(m.num_moe_experts % ep == 0, "parallel.expert_model_parallel_size", ep,
                "must divide " + key_is("model.num_moe_experts", m.num_moe_experts),
                "choose a divisor of the experts");
  const bool divides = rules.world_size % all == 0;
  rules.require(divides, "parallel.expert_model_parallel_size", ep,
                concat("etp * ep * pp = ", all, " (with ", key_is("parallel.expert_tensor_parallel_size", etp), ", ",
                       key_is("parallel.pipeline_model_parallel_size", parallel.pp()), ") must divide the ",
                       rules.world_size, " ranks"),
                concat("choose sizes whose product divides ", rules.world_size));
  const int64_t width = expert_ffn_width(m);
  rules.require(width % etp == 0, "parallel.expert_tensor_parallel_size", etp,
                concat("must divide the experts' inner width, ", width, " (model.moe_ffn_hidden_size)"),
                "choose a width that divides over its ranks");
  if (divides && rules.dp > 0) {
    const int64_t edp = rules.world_size / all, instances = parallel.num_distributed_optimizer_instances;
    rules.require(edp % instances == 0, "parallel.num_distributed_optimizer_instances", instances,
                  concat("must divide the ", edp, " ranks that share an expert's gradient (with ", both, ")"),
                  concat("choose a divisor of ", edp));
  }
  const Choice<TokenDispatcher> dispatcher = m.moe_token_dispatcher_type;
  rules.require(dispatcher != TokenDispatcher::local || layer == 1, "model.moe_token_dispatcher_type", dispatcher,
                concat("sends no tokens, but ", layer, " ranks share a layer's experts (", both, ")"),
                "use auto, or one rank for all experts");
  check_static_buffer(rules);
  check_row_formats(rules);
  const int64_t node = parallel.expert_ranks_per_node;
  static constexpr const char* kNode = "parallel.expert_ranks_per_node";
  rules.require(node == 0 || dispatcher == TokenDispatcher::hierarchical, kNode, node,
                "is for model.moe_token_dispatcher_type = hierarchical, not " + dispatcher,
                "leave it 0 or use hierarchical");
  rules.require(node > 0 || dispatcher != TokenDispatcher::hierarchical, kNode, node,
                concat("must be the number of neighbours that share a node, with model.moe_token_dispatcher_type = "
                       "hierarchical: without it every row is only copied once more than with alltoall (",
                       layer, " ranks share a layer's experts)"),
                concat("give a divisor of ", layer, ", or use alltoall"));
  rules.require(node == 0 || layer % node == 0, kNode, node,
                concat("must divide the ", layer, " ranks that share a layer's experts (", both, ")"),
                concat("choose a divisor of ", layer));
  rules.require(
      !rules.trains() || parallel.tp() == 1 || parallel.sequence_parallel, "parallel.sequence_parallel", "false",
      concat("must be on to train experts with ", key_is("parallel.tensor_model_parallel_size", parallel.tp()),
             ": each of these ranks would send the same tokens"),
      "turn it on, or set tensor_model_parallel_size to 1");
}

void check_layers(Rules& rules) {
  const Model& m = rules.config.model;
  static constexpr const char* kKey = "model.moe_layer_freq";
  if (!m.hybrid_layer_pattern.empty()) return;  // check_hybrid_layers
  std::string problem;
  const auto layers = read_moe_layers(m.moe_layer_freq, m.num_layers, problem);
  rules.require(layers.has_value(), kKey, m.moe_layer_freq, "must define which layers have experts, but " + problem,
                "write N for every N-th layer, or one 0 or 1 a layer, like [0,1,1,1] or ([0]*1+[1]*3)*2");
  rules.require(!layers || std::find(layers->begin(), layers->end(), true) != layers->end(), kKey, m.moe_layer_freq,
                concat("leaves no layer for the experts (", key_is("model.num_moe_experts", m.num_moe_experts), ")"),
                "mark a layer with 1, or set model.num_moe_experts to 0");
}

void check_choice(Rules& rules) {
  const Model& m = rules.config.model;
  const int64_t k = m.moe_router_topk, groups = m.moe_router_num_groups, group_k = m.moe_router_group_topk;
  static constexpr const char* kTopk = "model.moe_router_topk";
  rules.require(k <= m.num_moe_experts, kTopk, k,
                "must not exceed " + key_is("model.num_moe_experts", m.num_moe_experts), "lower it");
  rules.require(groups == 0 || group_k > 0, "model.moe_router_group_topk", group_k,
                "must be given with " + key_is("model.moe_router_num_groups", groups),
                "set the number of groups a token may be sent to, or set both to 0");
  if (groups > 0 && group_k > 0 && m.num_moe_experts % groups == 0) {
    const int64_t chosen = group_k * (m.num_moe_experts / groups);
    const int64_t best = m.moe_router_group_score_topk;
    rules.require(best > 0 || k % group_k == 0, kTopk, k,
                  "must be a multiple of " + key_is("model.moe_router_group_topk", group_k),
                  "choose a multiple, or set model.moe_router_group_score_topk");
    rules.require(best <= m.num_moe_experts / groups, "model.moe_router_group_score_topk", best,
                  concat("must not exceed the ", m.num_moe_experts / groups, " experts of a group"), "lower it");
    rules.require(k <= chosen, kTopk, k,
                  concat("must not exceed the ", chosen, " experts of the chosen groups (",
                         key_is("model.moe_router_group_topk", group_k), ")"),
                  "choose more groups");
    rules.require(!sinkhorn(m), "model.moe_router_num_groups", groups,
                  "has no meaning with model.moe_router_load_balancing_type = sinkhorn, which has no groups",
                  "leave it 0");
  }
  rules.require(groups > 0 || m.moe_router_group_score_topk == 0, "model.moe_router_group_score_topk",
                m.moe_router_group_score_topk, "has no meaning without model.moe_router_num_groups", "leave it 0");
  rules.require(m.moe_router_topk_normalization == TopkNormalization::automatic ||
                    m.moe_router_score_function != ScoreFunction::softmax,
                "model.moe_router_topk_normalization", m.moe_router_topk_normalization,
                "is for model.moe_router_score_function = sigmoid or sqrtsoftplus; with softmax, "
                "model.moe_router_pre_softmax selects the experts that it covers",
                "leave it auto");
  rules.require(!m.moe_apply_probs_on_input || k == 1, "model.moe_apply_probs_on_input", "true",
                "needs model.moe_router_topk = 1, not " + std::to_string(k), "turn it off");
}

void check_balancing(Rules& rules) {
  const Model& m = rules.config.model;
  static constexpr const char* kType = "model.moe_router_load_balancing_type";
  static constexpr const char* kCoeff = "model.moe_aux_loss_coeff";
  std::vector<std::string> known = words_of<AuxLossType>();
  known.insert(known.end(), {"sinkhorn", "none"});
  const std::vector<std::string> types = comma_list(m.moe_router_load_balancing_type);
  for (const std::string& type : types) {
    const std::string nearest = base::nearest_name(type, known);
    rules.require(std::find(known.begin(), known.end(), type) != known.end(), kType, type,
                  "must be aux_loss, seq_aux_loss, global_aux_loss, several of them with commas, sinkhorn or none",
                  nearest.empty() ? "choose one of them" : "did you mean " + nearest + "?");
    rules.require(std::count(types.begin(), types.end(), type) == 1, kType, m.moe_router_load_balancing_type,
                  "names " + type + " twice", "name it once");
    rules.require(types.size() == 1 || (type != "sinkhorn" && type != "none"), kType,
                  m.moe_router_load_balancing_type, type + " cannot be combined with others", "leave the others out");
  }
  std::string problem;
  const auto coefficients = read_coefficients(m.moe_aux_loss_coeff, problem);
  rules.require(coefficients.has_value(), kCoeff, m.moe_aux_loss_coeff, problem,
                "write one number for each of model.moe_router_load_balancing_type");
  const bool any =
      coefficients && std::any_of(coefficients->begin(), coefficients->end(), [](double c) { return c > 0; });
  rules.require(!sinkhorn(m) || !any, kCoeff, m.moe_aux_loss_coeff,
                "has no meaning with model.moe_router_load_balancing_type = sinkhorn, which balances by itself",
                "set it to 0");
  rules.require_effect(types != std::vector<std::string>{"none"} || !any, kCoeff, m.moe_aux_loss_coeff,
                       "has no meaning with model.moe_router_load_balancing_type = none",
                       "set it to 0, or name a loss");
}

// Sinkhorn routing ignores these settings.
void check_sinkhorn(Rules& rules) {
  const Model& m = rules.config.model;
  if (!sinkhorn(m)) return;
  const std::string none =
      "has no meaning with model.moe_router_load_balancing_type = sinkhorn, which does not use it";
  rules.require(!m.moe_router_enable_expert_bias, "model.moe_router_enable_expert_bias", "true", none, "turn it off");
  rules.require(!m.moe_router_pre_softmax, "model.moe_router_pre_softmax", "true", none, "turn it off");
  rules.require(m.moe_router_topk_scaling_factor == 0, "model.moe_router_topk_scaling_factor",
                m.moe_router_topk_scaling_factor, none, "set it to 0");
}

// At most one setting may replace the router's choice.
void check_forced(Rules& rules) {
  const Model& m = rules.config.model;
  const bool trace = !m.moe_router_force_trace.empty(), skew = m.moe_router_force_skew > 0;
  const std::pair<const char*, bool> forced[] = {
      {"model.moe_router_force_load_balancing", m.moe_router_force_load_balancing},
      {"model.moe_router_force_skew", skew},
      {"model.moe_router_force_even", m.moe_router_force_even},
      {"model.moe_router_force_trace", trace}};
  const char* first = nullptr;
  for (const auto& [key, on] : forced) {
    if (!on) continue;
    rules.require(first == nullptr, key, "set",
                  concat("excludes ", first == nullptr ? "" : first, ": both determine the experts of tokens"),
                  "keep one of the two");
    first = key;
  }
  rules.require(skew || m.moe_router_force_skew_period == 0, "model.moe_router_force_skew_period",
                m.moe_router_force_skew_period, "has no meaning without model.moe_router_force_skew", "leave it 0");
}

void check_shared(Rules& rules) {
  const Model& m = rules.config.model;
  const int64_t tp = rules.config.parallel.tp(), width = m.moe_shared_expert_intermediate_size;
  static constexpr const char* kWidth = "model.moe_shared_expert_intermediate_size";
  if (width == 0) {
    const std::string none = concat("needs a shared expert: ", kWidth, " is 0");
    rules.require_effect(!m.moe_shared_expert_gate, "model.moe_shared_expert_gate", "true", none,
                         "give its width, or turn this off");
    rules.require_effect(!m.moe_shared_expert_overlap, "model.moe_shared_expert_overlap", "true", none,
                         "give its width, or turn this off");
    for (const std::string& module : rules.config.memory.recompute_modules)
      rules.require(module != "shared_experts", "memory.recompute_modules", module, none, "leave it out");
    return;
  }
  rules.require(width % tp == 0, kWidth, width,
                "must be a multiple of " + key_is("parallel.tensor_model_parallel_size", tp),
                "choose a width that divides over the tensor-parallel ranks");
  rules.require(!m.add_bias_linear, kWidth, width, "excludes model.add_bias_linear: shared experts have no biases",
                "set add_bias_linear to false");
  rules.require(!m.add_mlp_bias, kWidth, width, "excludes model.add_mlp_bias: shared experts have no biases",
                "set add_mlp_bias to false");
}

}  // namespace

void check_experts(Rules& rules) {
  if (!rules.config.model.has_experts()) return check_dense(rules);
  check_expert_ranks(rules);
  check_layers(rules);
  check_choice(rules);
  check_balancing(rules);
  check_sinkhorn(rules);
  check_forced(rules);
  check_shared(rules);
  check_paged_stash(rules);
  check_echo(rules);
}

}  // namespace metroplex::config

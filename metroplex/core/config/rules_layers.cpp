// Rules for layers with one sublayer each, and for Mamba-2.
#include "config/rules.h"

#include "config/family.h"
#include "config/layer_parts.h"

namespace metroplex::config {

using base::concat;

namespace {

constexpr const char* kPattern = "model.hybrid_layer_pattern";
constexpr const char* kGroups = "model.mamba_num_groups";
constexpr const char* kHeads = "model.mamba_num_heads";

bool of_mamba(std::string_view name) { return name.starts_with("mamba_"); }

void check_pattern(Rules& rules) {
  const Model& m = rules.config.model;
  std::string problem;
  const bool reads = read_hybrid_layers(m.hybrid_layer_pattern, m.num_layers, problem).has_value();
  rules.require(reads, kPattern, m.hybrid_layer_pattern, "must have one symbol per layer, but " + problem,
                "write M, G, L, *, - or E for each layer");
  if (!reads) return;
  const auto excludes = [&](bool holds, const std::string& what, const char* fix) {
    rules.require(holds, kPattern, m.hybrid_layer_pattern, "excludes " + what, fix);
  };
  const Family* const family = find_family(m.family);
  excludes(family == nullptr || !family->top_query, concat("model.family = ", m.family), "use another family");
  excludes(!m.multi_latent_attention, "model.multi_latent_attention", "turn it off");
  excludes(!m.parallel_attention_mlp, "model.parallel_attention_mlp", "turn it off");
  excludes(m.mtp_num_layers == 0, "model.mtp_num_layers", "set it to 0");
  excludes(!m.has_linear_attention(), "model.experimental_attention_variant",
           "set it to none, and write G or L for linear attention");
  excludes(m.moe_layer_freq == Model().moe_layer_freq, "model.moe_layer_freq: E names the layers with experts",
           "leave moe_layer_freq out");
  rules.require(m.has_experts() == any_layer_has(m, &LayerParts::experts), kPattern, m.hybrid_layer_pattern,
                "must have E if and only if " + key_is("model.num_moe_experts", m.num_moe_experts) + " is above 0",
                "change one of the two");
}

void check_mamba_sizes(Rules& rules) {
  const Model& m = rules.config.model;
  const int64_t tp = rules.config.parallel.tp(), heads = mamba_heads(m), groups = m.mamba_num_groups;
  rules.require(heads > 0 && (m.mamba_num_heads > 0 || 2 * m.hidden_size % m.mamba_head_dim == 0),
                "model.mamba_head_dim", m.mamba_head_dim,
                concat("must divide 2 * ", key_is("model.hidden_size", m.hidden_size)),
                concat("change it, or set ", kHeads));
  rules.require(heads % groups == 0, kHeads, heads, "must be a multiple of " + key_is(kGroups, groups),
                "change one of the two");
  rules.require(groups % tp == 0, kGroups, groups,
                "must be a multiple of " + key_is("parallel.tensor_model_parallel_size", tp) +
                    ": a group of heads is never split over tensor-parallel ranks",
                "choose a tensor-parallel size that divides the groups");
  rules.require(m.mamba_dt_max == 0 || m.mamba_dt_max >= m.mamba_dt_min, "model.mamba_dt_max", m.mamba_dt_max,
                concat("must be at least model.mamba_dt_min = ", number_text(m.mamba_dt_min)),
                "raise it, or set it to 0");
}

void check_mamba_context(Rules& rules) {
  const Parallel& parallel = rules.config.parallel;
  const Model& m = rules.config.model;
  const int64_t ranks = parallel.tp() * parallel.cp();
  rules.require(
      parallel.cp() == 1 || m.mamba_num_groups % ranks == 0, kGroups, m.mamba_num_groups,
      concat("must be a multiple of ", ranks,
             ", parallel.tensor_model_parallel_size times parallel.context_parallel_size, whose ranks share "
             "the groups of heads"),
      "choose other sizes");
  rules.require(!parallel.hybrid_context_parallel, kPattern, m.hybrid_layer_pattern,
                "excludes parallel.hybrid_context_parallel: the exchange of Mamba-2 needs groups of one size",
                "use parallel.context_parallel_size alone");
}

}  // namespace

void check_hybrid_layers(Rules& rules) {
  const Model& m = rules.config.model;
  if (!m.hybrid_layer_pattern.empty()) check_pattern(rules);
  if (!any_layer_has(m, &LayerParts::mamba))
    return refuse_without(rules, "M in model.hybrid_layer_pattern", of_mamba);
  check_mamba_sizes(rules);
  check_mamba_context(rules);
}

}  // namespace metroplex::config

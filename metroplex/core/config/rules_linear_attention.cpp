// Rules for layers with linear attention and for the gate of softmax attention.
#include "config/rules.h"

#include <algorithm>

#include "config/experts.h"
#include "config/family.h"

namespace metroplex::config {

using base::concat;

namespace {

constexpr const char* kVariant = "model.experimental_attention_variant";
constexpr const char* kLayers = "model.linear_attention_freq";
constexpr const char* kGate = "model.attention_output_gate";

bool of_delta_net(std::string_view name) { return name.starts_with("linear_") && name != "linear_attention_freq"; }
bool of_lightning(std::string_view name) { return name.starts_with("lightning_"); }

void check_linear_layers(Rules& rules) {
  const Model& m = rules.config.model;
  std::string problem = "it is empty";
  const auto layers = m.linear_attention_freq.empty()
                          ? std::nullopt
                          : read_window_layers(m.linear_attention_freq, m.num_layers, problem);
  rules.require(layers.has_value(), kLayers, m.linear_attention_freq.empty() ? "(empty)" : m.linear_attention_freq,
                "must define which layers have linear attention, but " + problem,
                "write N for all but every N-th layer, or one 0 or 1 a layer, like [1,0] or [1]*3+[0]");
  rules.require(!layers || std::find(layers->begin(), layers->end(), true) != layers->end(), kLayers,
                m.linear_attention_freq, concat("names no layer, which excludes ", kVariant),
                "name a layer, or set the variant to none");
}

void check_lightning_heads(Rules& rules) {
  const int64_t heads = rules.config.model.num_attention_heads, tp = rules.config.parallel.tp(),
                cp = rules.config.parallel.cp();
  rules.require(heads % (tp * cp) == 0, "model.num_attention_heads", heads,
                concat("must be a multiple of ", tp * cp, ", ", key_is("parallel.tensor_model_parallel_size", tp),
                       " times ", key_is("parallel.context_parallel_size", cp), ", for lightning attention"),
                "choose smaller sizes");
}

void check_linear_heads(Rules& rules) {
  const Model& m = rules.config.model;
  rules.require(m.linear_num_value_heads % m.linear_num_key_heads == 0, "model.linear_num_value_heads",
                m.linear_num_value_heads,
                concat("must be a multiple of ", key_is("model.linear_num_key_heads", m.linear_num_key_heads)),
                "change one of the two");
  const int64_t tp = rules.config.parallel.tp(), cp = rules.config.parallel.cp();
  rules.require(m.linear_num_key_heads % (tp * cp) == 0, "model.linear_num_key_heads", m.linear_num_key_heads,
                concat("must be a multiple of ", tp * cp, ", ", key_is("parallel.tensor_model_parallel_size", tp),
                       " times ", key_is("parallel.context_parallel_size", cp)),
                "choose smaller sizes");
}

// Rejects settings that `key` does not support.
void check_exclusions(Rules& rules, const char* key, const std::string& value, const char* fix) {
  const Config& config = rules.config;
  const Family* const family = find_family(config.model.family);
  const auto excludes = [&](bool holds, const std::string& what) {
    rules.require(holds, key, value, "excludes " + what, fix);
  };
  excludes(!config.model.multi_latent_attention, "model.multi_latent_attention");
  excludes(family == nullptr || !family->top_query, concat("model.family = ", config.model.family));
  excludes(!config.peft.lora(), "peft.lora_rank above 0");
}

}  // namespace

void check_linear_attention(Rules& rules) {
  const Config& config = rules.config;
  if (config.model.attention_output_gate) check_exclusions(rules, kGate, "true", "turn it off");
  const bool delta_net = config.model.has_delta_net(), lightning = config.model.has_lightning();
  rules.require_effect(config.model.has_linear_attention() || config.model.linear_attention_freq.empty(), kLayers,
                       config.model.linear_attention_freq, concat("has no effect without ", kVariant),
                       "leave it out, or set the variant");
  if (!delta_net) refuse_without(rules, "model.experimental_attention_variant = gated_delta_net", of_delta_net);
  if (!lightning) refuse_without(rules, "model.experimental_attention_variant = lightning_attention", of_lightning);
  if (!delta_net && !lightning) return;
  if (config.model.has_linear_attention()) check_linear_layers(rules);
  if (delta_net) check_linear_heads(rules);
  if (lightning) check_lightning_heads(rules);
  const bool pattern = !config.model.has_linear_attention();
  const char* const key = pattern ? "model.hybrid_layer_pattern" : kVariant;
  const std::string value =
      pattern ? config.model.hybrid_layer_pattern : config.model.experimental_attention_variant.text();
  check_exclusions(rules, key, value, pattern ? "write other layers than G and L" : "set it to none");
  rules.require(config.model.mtp_num_layers == 0, key, value,
                "excludes model.mtp_num_layers: the attention of these layers is not defined",
                "leave one of them out");
  rules.require(!config.parallel.hybrid_context_parallel, key, value, "excludes parallel.hybrid_context_parallel",
                "use parallel.context_parallel_size");
}

}  // namespace metroplex::config

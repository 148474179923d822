#include "forecast/memory_options.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/join.h"
#include "config/layer_parts.h"

namespace metroplex::forecast {
namespace {

OptionLevels sequence_levels(const config::Config& config) {
  if (config.parallel.tp() == 1 || config.parallel.sequence_parallel) return {OptionKind::sequence, {}};
  return {OptionKind::sequence,
          {{{"parallel.sequence_parallel=true"}, "shard the sequence over tensor-parallel ranks"}}};
}

OptionLevels remainders_levels(const config::Config& config) {
  if (config.optim.store_param_remainders) return {OptionKind::remainders, {}};
  return {OptionKind::remainders, {{{"optim.store_param_remainders=true"}, "store remainders of main parameters"}}};
}

OptionLevels sharding_levels(const config::Config& config) {
  OptionLevels list{OptionKind::sharding, {}};
  for (const auto& word : config::kWords<config::ShardingStrategy>) {
    const int stage = config::sharding_of(word.value).stage();
    if (stage <= config.parallel.sharding().stage()) continue;
    list.levels.push_back(
        {{std::string("parallel.data_parallel_sharding_strategy=") + word.text}, "ZeRO-" + std::to_string(stage)});
  }
  return list;
}

// The global batch size is unchanged. If it was derived from the microbatch size, it is set explicitly.
OptionLevels micro_batch_levels(const config::Config& config) {
  OptionLevels list{OptionKind::micro_batch, {}};
  for (int64_t size = config.train.micro_batch_size; size > 1 && size % 2 == 0;) {
    size /= 2;
    OptionLevel level{{"train.micro_batch_size=" + std::to_string(size)}, "microbatches of " + std::to_string(size)};
    if (config.train.global_batch_size > 0)
      level.settings.push_back("train.global_batch_size=" + std::to_string(config.train.global_batch_size));
    list.levels.push_back(level);
  }
  return list;
}

// True if the model has `module` and may recompute it.
bool recomputable(const config::Model& m, const std::string& module) {
  using config::LayerParts;
  const bool any = config::any_layer_has(m, &LayerParts::experts);
  if (module == "moe") return any;
  if (module == "moe_act") return any && m.moe_grouped_gemm;
  if (module == "shared_experts")
    return any && m.moe_shared_expert_intermediate_size > 0 && !m.moe_shared_expert_overlap;
  if (module == "mlp" || module == "activation") return config::any_layer_has(m, &LayerParts::mlp);
  if (module == "mla_up_proj") return m.multi_latent_attention;
  if (module == "core_attn")
    return config::any_layer_has(m, &LayerParts::attention) || config::any_layer_has(m, &LayerParts::delta_net) ||
           config::any_layer_has(m, &LayerParts::lightning);
  return true;
}

void add_selective(const config::Config& config, OptionLevels& list) {
  static const std::vector<std::set<std::string>> kSets = {{"layernorm"},
                                                           {"activation", "moe_act"},
                                                           {"core_attn"},
                                                           {"mla_up_proj"},
                                                           {"activation", "core_attn", "layernorm", "moe_act"},
                                                           {"layernorm", "moe_act", "shared_experts"},
                                                           {"layernorm", "mla_up_proj", "moe_act", "shared_experts"},
                                                           {"layernorm", "mlp", "moe"},
                                                           {"core_attn", "layernorm", "mlp", "moe"}};
  const std::set<std::string> already(config.memory.recompute_modules.begin(), config.memory.recompute_modules.end());
  std::set<std::string> seen{base::join(already, ",")};
  for (std::set<std::string> modules : kSets) {
    std::erase_if(modules, [&](const std::string& module) { return !recomputable(config.model, module); });
    modules.insert(already.begin(), already.end());
    if (modules.contains("mlp")) modules.erase("activation");
    if (modules.contains("moe")) modules.erase("moe_act"), modules.erase("shared_experts");
    if (modules.empty()) continue;
    if (!seen.insert(base::join(modules, ",")).second) continue;
    list.levels.push_back(
        {{"memory.recompute_granularity=selective", "memory.recompute_modules=" + base::join(modules, ",")},
         "recompute " + base::join(modules, ",")});
  }
}

// One-layer chunks save the most inputs and recompute the least at a time. Chunks of sqrt(layers) balance the two
// (Chen et al., arXiv:1604.06174).
OptionLevels recompute_levels(const config::Config& config) {
  OptionLevels list{OptionKind::recompute, {}};
  if (!config.memory.recomputes_all()) add_selective(config, list);
  const auto layers = static_cast<double>(config.model.num_layers / (config.parallel.pp() * config.parallel.vpp()));
  for (const int64_t chunk : std::set<int64_t>{1, std::max<int64_t>(1, std::llround(std::sqrt(layers)))}) {
    for (const bool cut : {false, true}) {
      if (cut && (config.parallel.tp() == 1 || config.parallel.sequence_parallel)) continue;
      OptionLevel level{{"memory.recompute_granularity=full", "memory.recompute_method=uniform",
                         "memory.recompute_num_layers=" + std::to_string(chunk)},
                        "recompute whole layers"};
      if (chunk > 1) level.what += ", " + std::to_string(chunk) + " at a time";
      if (!config.memory.recompute_modules.empty()) level.settings.push_back("memory.recompute_modules=");
      if (cut) level.settings.push_back("memory.distribute_saved_activations=true");
      if (cut) level.what += ", their inputs sharded over tensor-parallel ranks";
      list.levels.push_back(level);
    }
  }
  return list;
}

OptionLevels optimizer_offload_levels(const config::Config& config, bool gpu) {
  if (!gpu || config.optim.optimizer_cpu_offload) return {OptionKind::optimizer_offload, {}};
  return {OptionKind::optimizer_offload, {{{"optim.optimizer_cpu_offload=true"}, "optimizer in host memory"}}};
}

OptionLevels activation_offload_levels(const config::Config& config) {
  OptionLevels list{OptionKind::activation_offload, {}};
  if (config.memory.offload_activations != config::Offload::none) return list;
  list.levels = {{{"memory.offload_activations=host"}, "activations in host memory"},
                 {{"memory.offload_activations=file"}, "activations in a file"}};
  return list;
}

}  // namespace

std::vector<OptionLevels> option_levels(const config::Config& config, bool gpu) {
  return {sequence_levels(config),          remainders_levels(config), sharding_levels(config),
          micro_batch_levels(config),       recompute_levels(config),  optimizer_offload_levels(config, gpu),
          activation_offload_levels(config)};
}

}  // namespace metroplex::forecast

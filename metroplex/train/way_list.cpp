#include "train/way_list.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "config/experts.h"

namespace metroplex::train {
namespace {

WayList sequence_ways(const config::Config& c) {
  if (c.parallel.tp() == 1 || c.parallel.sequence_parallel) return {WayKind::sequence, {}};
  return {WayKind::sequence, {{{"parallel.sequence_parallel=true"}, "cut the sequence over tensor-parallel ranks"}}};
}

WayList remainders_ways(const config::Config& c) {
  if (c.optim.store_param_remainders) return {WayKind::remainders, {}};
  return {WayKind::remainders, {{{"optim.store_param_remainders=true"}, "keep remainders for main parameters"}}};
}

WayList sharding_ways(const config::Config& c) {
  WayList list{WayKind::sharding, {}};
  for (const auto& word : config::kWords<config::ShardingStrategy>) {
    const int stage = config::sharding_of(word.value).stage();
    if (stage <= c.parallel.sharding().stage()) continue;
    list.levels.push_back(
        {{std::string("parallel.data_parallel_sharding_strategy=") + word.text}, "ZeRO-" + std::to_string(stage)});
  }
  return list;
}

// The batch stays: where it was left to follow from the microbatch, it is written out.
WayList micro_batch_ways(const config::Config& c) {
  WayList list{WayKind::micro_batch, {}};
  for (int64_t size = c.train.micro_batch_size; size > 1 && size % 2 == 0;) {
    size /= 2;
    WayLevel level{{"train.micro_batch_size=" + std::to_string(size)}, "microbatches of " + std::to_string(size)};
    if (c.train.global_batch_size > 0)
      level.settings.push_back("train.global_batch_size=" + std::to_string(c.train.global_batch_size));
    list.levels.push_back(level);
  }
  return list;
}

std::string joined(const std::set<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

// Whether `module` names something that the model has and may recompute.
bool recomputable(const config::Model& m, const std::string& module) {
  const std::vector<bool> experts = config::moe_layers(m);
  const bool any = std::find(experts.begin(), experts.end(), true) != experts.end();
  if (module == "moe") return any;
  if (module == "moe_act") return any && m.moe_grouped_gemm;
  if (module == "shared_experts")
    return any && m.moe_shared_expert_intermediate_size > 0 && !m.moe_shared_expert_overlap;
  if (module == "mlp" || module == "activation")
    return std::find(experts.begin(), experts.end(), false) != experts.end();
  return true;
}

void add_selective(const config::Config& c, WayList& list) {
  static const std::vector<std::set<std::string>> kSets = {{"layernorm"},
                                                           {"activation", "moe_act"},
                                                           {"core_attn"},
                                                           {"activation", "core_attn", "layernorm", "moe_act"},
                                                           {"layernorm", "moe_act", "shared_experts"},
                                                           {"layernorm", "mlp", "moe"},
                                                           {"core_attn", "layernorm", "mlp", "moe"}};
  const std::set<std::string> already(c.memory.recompute_modules.begin(), c.memory.recompute_modules.end());
  std::set<std::string> seen{joined(already)};
  for (std::set<std::string> modules : kSets) {
    std::erase_if(modules, [&](const std::string& module) { return !recomputable(c.model, module); });
    modules.insert(already.begin(), already.end());
    if (modules.contains("mlp")) modules.erase("activation");
    if (modules.contains("moe")) modules.erase("moe_act"), modules.erase("shared_experts");
    if (modules.empty()) continue;
    if (!seen.insert(joined(modules)).second) continue;
    list.levels.push_back({{"memory.recompute_granularity=selective", "memory.recompute_modules=" + joined(modules)},
                           "recompute " + joined(modules)});
  }
}

// Chunks of one layer keep the most inputs and make the least again at a time; those of the root of all balance the
// two (Chen et al., arXiv:1604.06174).
WayList recompute_ways(const config::Config& c) {
  WayList list{WayKind::recompute, {}};
  if (!c.memory.recomputes_all()) add_selective(c, list);
  const auto layers = static_cast<double>(c.model.num_layers / (c.parallel.pp() * c.parallel.vpp()));
  for (const int64_t chunk : std::set<int64_t>{1, std::max<int64_t>(1, std::llround(std::sqrt(layers)))}) {
    for (const bool cut : {false, true}) {
      if (cut && (c.parallel.tp() == 1 || c.parallel.sequence_parallel)) continue;
      WayLevel level{{"memory.recompute_granularity=full", "memory.recompute_method=uniform",
                      "memory.recompute_num_layers=" + std::to_string(chunk)},
                     "recompute whole layers"};
      if (chunk > 1) level.what += ", " + std::to_string(chunk) + " at a time";
      if (!c.memory.recompute_modules.empty()) level.settings.push_back("memory.recompute_modules=");
      if (cut) level.settings.push_back("memory.distribute_saved_activations=true");
      if (cut) level.what += ", their inputs cut over tensor-parallel ranks";
      list.levels.push_back(level);
    }
  }
  return list;
}

WayList optimizer_offload_ways(const config::Config& c, bool gpu) {
  if (!gpu || c.optim.optimizer_cpu_offload) return {WayKind::optimizer_offload, {}};
  return {WayKind::optimizer_offload, {{{"optim.optimizer_cpu_offload=true"}, "optimizer in host memory"}}};
}

WayList activation_offload_ways(const config::Config& c) {
  WayList list{WayKind::activation_offload, {}};
  if (c.memory.offload_activations != config::Offload::none) return list;
  list.levels = {{{"memory.offload_activations=host"}, "activations in host memory"},
                 {{"memory.offload_activations=file"}, "activations in a file"}};
  return list;
}

}  // namespace

std::vector<WayList> way_lists(const config::Config& c, bool gpu) {
  return {sequence_ways(c),          remainders_ways(c), sharding_ways(c),
          micro_batch_ways(c),       recompute_ways(c),  optimizer_offload_ways(c, gpu),
          activation_offload_ways(c)};
}

}  // namespace metroplex::train

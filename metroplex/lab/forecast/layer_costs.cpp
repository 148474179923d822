#include "forecast/layer_costs.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "base/error.h"
#include "config/validate.h"

namespace metroplex::forecast {
namespace {

// The layers' part of the layout: a model of one layer of each form on the ranks that share a microbatch.
struct LayerRun {
  config::Config config;
  int world = 1;
};

LayerRun layer_run(const LayerForms& forms, Layout layout) {
  LayerRun run;
  run.world = static_cast<int>(std::lcm(layout.tp * layout.cp, layout.ep * layout.etp));
  layout.pp = layout.vpp = 1;
  layout.schedule = config::Schedule::automatic;
  layout.sharding = config::ShardingStrategy::no_shard;
  layout.offloads_activations = layout.offloads_optimizer = false;
  run.config = layout.apply(forms.config);
  run.config.train.global_batch_size = layout.micro_batch * layout.dp(run.world);
  run.config.train.rampup_batch_size.clear();
  config::check(run.config, run.world);
  run.config = config::resolved(run.config, run.world);
  return run;
}

// Seconds of a microbatch, with exposed communication of the layers.
struct PassTimes {
  double forward = 0, backward = 0;
  double exposed = 0;  // included
};

PassTimes measure_passes(const PlanRequest& request, const LayerRun& run, const TracedRun& traced) {
  const replay::StepTime time = price_step(traced, run.config, request.machine, request.experts);
  const replay::RankTimes& times = time.ranks[0];
  const bool hides = run.config.parallel.overlap_moe_expert_parallel_comm;  // the paired pass, which is not here
  double exposed = 0;
  for (const auto& [purpose, seconds] : times.exposed)
    exposed += purpose == "layers" || purpose == "replicas" || (purpose == "experts" && !hides) ? seconds : 0;
  const double compute = std::max(times.forward + times.backward, 1e-12);
  return {times.forward * (1 + exposed / compute), times.backward * (1 + exposed / compute), exposed};
}

// The block of a form's layer: the embedding is block 0.
int block(size_t form) { return static_cast<int>(form) + 1; }

// Removes the regions of the blocks [first, last] from the trace. Embedding, head and loss remain.
TracedRun without_blocks(TracedRun traced, int first, int last) {
  for (replay::TracedAction& action : traced.traces[0].actions)
    std::erase_if(action.regions,
                  [&](const replay::IslandTrace& region) { return region.block >= first && region.block <= last; });
  return traced;
}

// Link seconds of a block's collectives in a forward and a backward.
std::vector<double> block_link_s(const price::Cluster& cluster, const replay::StepTrace& trace, int block) {
  std::vector<double> sum(cluster.domains.size());
  for (const plan::ActionKind kind : {plan::ActionKind::forward, plan::ActionKind::backward}) {
    for (const replay::IslandTrace& region : trace.find(kind, 0, {}).regions) {
      for (const replay::TraceOperation& one : region.operations) {
        if (region.block != block || one.group.empty() || one.name == "wait" || one.name == "recv") continue;
        const auto bytes = static_cast<double>(one.bytes);
        add_links(sum, cluster.collective_cost(one.name, trace.groups.at(one.group).ranks, bytes).link_s, 1);
      }
    }
  }
  return sum;
}

void count_params(MicrobatchCosts& costs, const replay::StepTrace& trace) {
  const std::string prefix = "decoder.layers.";
  for (const replay::TraceParam& param : trace.params) {
    const auto elements = static_cast<double>(param.numel());
    const size_t at = param.name.find(prefix);
    if (at == std::string::npos) {
      (param.name.starts_with("embedding.") ? costs.embedding_params : costs.head_params) += elements;
      continue;
    }
    LayerCosts& layer = costs.layers.at(std::stoul(param.name.substr(at + prefix.size())));
    const bool expert = param.name.find(".experts.") != std::string::npos;
    (expert ? layer.expert_params : layer.params) += elements;
    layer.rounded_weights += static_cast<double>(param.rounded_bytes);
  }
}

}  // namespace

void add_links(std::vector<double>& sum, const std::vector<double>& link_s, double times) {
  for (size_t domain = 0; domain < sum.size(); ++domain) sum[domain] += times * link_s[domain];
}

LayerCosts sum_layers(const MicrobatchCosts& costs, const std::vector<double>& counts) {
  LayerCosts sum;
  sum.link_s.resize(costs.layers[0].link_s.size());
  for (size_t form = 0; form < counts.size(); ++form) {
    const LayerCosts& layer = costs.layers[form];
    const double count = counts[form];
    sum.forward_s += count * layer.forward_s;
    sum.backward_s += count * layer.backward_s;
    sum.exposed_s += count * layer.exposed_s;
    add_links(sum.link_s, layer.link_s, count);
    sum.activations += count * layer.activations;
    sum.params += count * layer.params;
    sum.expert_params += count * layer.expert_params;
    sum.rounded_weights += count * layer.rounded_weights;
  }
  return sum;
}

MicrobatchCosts measure_layers(const PlanRequest& request, const LayerForms& forms, const Layout& layout) {
  const LayerRun run = layer_run(forms, layout);
  const FitRequest layers{run.config, run.world, request.run.vocab_size, request.run.domains, request.run.capability};
  const TracedRun traced = trace_run(layers.of_rank(0, 1));
  const replay::StepTrace& trace = traced.traces[0];
  const PassTimes all = measure_passes(request, run, traced),
                  ends = measure_passes(request, run, without_blocks(traced, block(0), block(forms.count() - 1))),
                  embedding =
                      measure_passes(request, run, without_blocks(traced, block(0), std::numeric_limits<int>::max()));
  MicrobatchCosts costs;
  for (size_t form = 0; form < forms.count(); ++form) {
    const PassTimes rest = measure_passes(request, run, without_blocks(traced, block(form), block(form)));
    LayerCosts& layer = costs.layers.emplace_back();
    layer.forward_s = all.forward - rest.forward;
    layer.backward_s = all.backward - rest.backward;
    layer.exposed_s = all.exposed - rest.exposed;
    layer.link_s = block_link_s(request.machine.cluster, trace, block(form));
    for (const replay::IslandTrace& region : trace.find(plan::ActionKind::forward, 0, {}).regions)
      layer.activations += region.block == block(form) ? static_cast<double>(region.net()) : 0;
  }
  costs.embedding_s = embedding.forward + embedding.backward;
  costs.head_s = ends.forward + ends.backward - costs.embedding_s;
  count_params(costs, trace);
  const config::Config& config = request.run.config;
  costs.border = static_cast<double>(layout.micro_batch * config.train.seq_length * config.model.hidden_size) * 2 /
                 static_cast<double>(layout.cp * layout.tp);
  return costs;
}

}  // namespace metroplex::forecast

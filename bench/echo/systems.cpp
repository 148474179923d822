#include "systems.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"

namespace metroplex::bench {
namespace {

using plan::EchoCounts;

class None : public System {
 public:
  None() : System("none") {}
  EchoPlacement place(const EchoTrace& trace, size_t step, const EchoMachine&) override {
    return echo_at_owner(trace.counts(step, 0));
  }
};

// Updates the placement every `history` steps from the rows since the last update.
class Eplb : public System {
 public:
  Eplb(int slots, size_t history)
      : System(base::concat("EPLB, history ", history)), slots_(slots), history_(history) {}

  EchoPlacement place(const EchoTrace& trace, size_t step, const EchoMachine&) override {
    const plan::EchoSizes sizes = trace.sizes;
    const int replicas = sizes.experts + sizes.ranks * slots_;
    std::vector<EchoCopy> moves;
    if (step == 0) replicas_ = eplb_start(sizes, replicas);
    if (step > 0 && step % history_ == 0) {
      const std::vector<int32_t> next = eplb_replicas(rows(trace, step), {replicas, 1, 1, sizes.ranks});
      moves = eplb_moves(replicas_, next, sizes.ranks);
      replicas_ = next;
    }
    EchoPlacement placement = eplb_placement(trace.counts(step, 0), replicas_);
    placement.moves = moves;
    return placement;
  }

 private:
  std::vector<float> rows(const EchoTrace& trace, size_t step) const {
    std::vector<float> sums(static_cast<size_t>(trace.sizes.experts), 0);
    for (size_t past = step - history_; past < step; ++past) {
      for (size_t i = 0; i < trace.steps[past].size(); ++i)
        sums[i % sums.size()] += static_cast<float>(trace.steps[past][i]);
    }
    return sums;
  }

  int slots_;
  size_t history_;
  std::vector<int32_t> replicas_;
};

class Shadowing : public System {
 public:
  explicit Shadowing(const EchoLayer& layer) : System("FasterMoE's shadows"), layer_(layer) {}
  bool weighs_costs() const override { return true; }
  EchoPlacement place(const EchoTrace& trace, size_t step, const EchoMachine& machine) override {
    const EchoCounts counts = trace.counts(step, 0);
    const double bandwidth = machine.domain >= counts.sizes.ranks ? machine.link : machine.network;
    return shadow_placement(counts, select_shadows(counts, layer_, machine.flops, bandwidth));
  }

 private:
  EchoLayer layer_;
};

class Llep : public System {
 public:
  Llep() : System("LLEP") {}
  EchoPlacement place(const EchoTrace& trace, size_t step, const EchoMachine&) override {
    return llep_placement(trace.counts(step, 0));
  }
};

class Echo : public System {
 public:
  Echo(const std::string& called, int slots, config::EchoPlanner planner) : System(called), slots_(slots) {
    options_.planner = planner;
    const bool upstream = planner == config::EchoPlanner::greedy || planner == config::EchoPlanner::binpack;
    if (upstream) options_.split = plan::EchoSplit::breadth_then_depth;
  }
  // Only our local_first split uses distances.
  bool weighs_costs() const override { return options_.split == plan::EchoSplit::local_first; }
  EchoPlacement place(const EchoTrace& trace, size_t step, const EchoMachine& machine) override {
    const EchoCounts counts = trace.counts(step, slots_);
    if (weighs_costs()) options_.ranks_per_node = machine.domain < counts.sizes.ranks ? machine.domain : 0;
    plan_echo(counts, options_, workspace_, plan_);
    return echo_placement(counts, plan_);
  }

 private:
  int slots_;
  plan::EchoOptions options_;
  plan::EchoWorkspace workspace_;
  plan::EchoPlan plan_;
};

void add_placement(const EchoPlacement& placement, const EchoLayer& layer, Summary& summary) {
  summary.imbalance.push_back(placement.imbalance());
  summary.replicas += static_cast<double>(placement.copies.size() + placement.persistent.size());
  std::vector<double> sent(static_cast<size_t>(placement.ranks), 0);
  const double bytes = static_cast<double>(layer.expert_elements() * layer.weight_bytes);
  for (const auto* const copies : {&placement.copies, &placement.moves}) {
    for (const EchoCopy& copy : *copies) sent[static_cast<size_t>(copy.from)] += bytes;
  }
  std::map<std::pair<int, int>, int> replicas;  // by owner and expert
  for (const EchoCopy& copy : placement.copies) ++replicas[{copy.from, copy.expert}];
  std::vector<int> rounds(sent.size(), 0);
  for (const auto& [key, count] : replicas)
    rounds[static_cast<size_t>(key.first)] += std::bit_width(static_cast<unsigned>(count));
  summary.rounds += *std::max_element(rounds.begin(), rounds.end());
  summary.bytes += std::accumulate(sent.begin(), sent.end(), 0.0);
  summary.sender_bytes += *std::max_element(sent.begin(), sent.end());
  const auto total = std::max(1.0, static_cast<double>(placement.total()));
  summary.away += static_cast<double>(placement.away) / total;
  summary.crossing += static_cast<double>(placement.crossing()) / total;
}

Summary summarize(System& system, const EchoTrace& trace, const EchoLayer& layer, size_t from) {
  const auto machines = echo_machines();
  Summary summary;
  summary.name = system.name;
  summary.share.assign(machines.size(), 0);
  summary.pays = summary.share;
  for (size_t step = 0; step < trace.steps.size(); ++step) {
    // Fields without times are those of GB200 if a system's choice depends on the machine.
    const size_t shown = machines.size() - 2;
    const EchoPlacement placement = system.place(trace, step, machines[shown]);
    if (step < from) continue;
    const EchoPlacement home = echo_at_owner(trace.counts(step, 0));
    add_placement(placement, layer, summary);
    const EchoPlacement even =
        echo_balanced(placement.ranks, (placement.total() + placement.ranks - 1) / placement.ranks);
    for (size_t i = 0; i < machines.size(); ++i) {
      const bool again = system.weighs_costs() && i != shown;
      const EchoPlacement other = again ? system.place(trace, step, machines[i]) : EchoPlacement();
      const EchoPlacement& taken = again ? other : placement;
      const double time = echo_cost(taken, layer, machines[i]).moe();
      summary.pays[i] += echo_gain(home, taken, layer, machines[i]).worth() ? 1 : 0;
      summary.share[i] += time > 0 ? echo_cost(even, layer, machines[i]).moe() / time : 1;
    }
  }
  const auto steps = static_cast<double>(trace.steps.size() - from);
  for (double* const value :
       {&summary.replicas, &summary.bytes, &summary.sender_bytes, &summary.rounds, &summary.away, &summary.crossing})
    *value /= steps;
  for (auto* const shares : {&summary.share, &summary.pays}) {
    for (double& share : *shares) share /= steps;
  }
  return summary;
}

}  // namespace

double Summary::mean() const {
  return std::accumulate(imbalance.begin(), imbalance.end(), 0.0) / static_cast<double>(imbalance.size());
}

// Returns the smallest value that is not exceeded in the share `of` of the steps.
double Summary::quantile(double of) const {
  std::vector<double> sorted = imbalance;
  std::sort(sorted.begin(), sorted.end());
  const auto at = static_cast<size_t>(std::ceil(of * static_cast<double>(sorted.size())));
  return sorted[std::min(sorted.size(), std::max<size_t>(1, at)) - 1];
}

std::vector<std::unique_ptr<System>> systems(int slots, const EchoLayer& layer, size_t steps) {
  using config::EchoPlanner;
  std::vector<std::unique_ptr<System>> all;
  all.push_back(std::make_unique<None>());
  for (const size_t history : {1, 10, 100}) {
    if (history < steps) all.push_back(std::make_unique<Eplb>(slots, history));
  }
  all.push_back(std::make_unique<Shadowing>(layer));
  all.push_back(std::make_unique<Llep>());
  all.push_back(std::make_unique<Echo>("upstream greedy", slots, EchoPlanner::greedy));
  all.push_back(std::make_unique<Echo>("upstream bin packing, 1 slot", 1, EchoPlanner::binpack));
  all.push_back(std::make_unique<Echo>("capfill, 1 slot", 1, EchoPlanner::capfill));
  all.push_back(std::make_unique<Echo>("capfill", slots, EchoPlanner::capfill));
  all.push_back(std::make_unique<Echo>("exact", slots, EchoPlanner::exact));
  return all;
}

std::vector<Summary> summaries(const EchoTrace& trace, int slots, const EchoLayer& layer, size_t from) {
  std::vector<Summary> all;
  for (const auto& system : systems(slots, layer, trace.steps.size()))
    all.push_back(summarize(*system, trace, layer, from));
  Summary& bound = all.emplace_back();
  bound.name = "bound";
  for (size_t step = from; step < trace.steps.size(); ++step) {
    const int64_t total = std::accumulate(trace.steps[step].begin(), trace.steps[step].end(), int64_t{0});
    const auto mean = static_cast<double>(total) / trace.sizes.ranks;
    bound.imbalance.push_back(static_cast<double>(echo_lower_bound(trace.counts(step, slots))) / mean);
  }
  return all;
}

}  // namespace metroplex::bench

#include "replay/rank_trace.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "plan/borders.h"
#include "plan/buckets.h"
#include "plan/pipeline_table.h"

namespace metroplex::replay {
namespace {

class TransientBytes {
 public:
  TransientBytes(const RankTrace& trace, int num_microbatches)
      : place_(trace.params.size()), overlaps_(trace.overlaps) {
    for (const TransientFamily& family : trace.transient) {
      std::vector<std::vector<size_t>> buckets;
      std::vector<int64_t> uses;
      for (const std::vector<size_t>& bucket : family.buckets) {
        std::vector<size_t>& own = buckets.emplace_back();
        for (const size_t param : bucket) {
          place_[param] = Place{families_.size(), uses.size()};
          own.push_back(uses.size());
          uses.push_back(trace.params[param].uses_per_microbatch);
        }
      }
      families_.push_back({family, plan::FillingBuckets(std::move(buckets), std::move(uses), trace.overlaps), 0});
      families_.back().filling.begin(family.permanent ? num_microbatches : 1);
    }
  }

  void open(size_t param) {
    if (!place_[param]) return;
    Family& family = families_[place_[param]->family];
    if (const auto bucket = family.filling.open(place_[param]->index)) held_ += family.trace.bytes[*bucket];
    most_ = std::max(most_, held_);
  }
  // Returns the maximum during the call.
  int64_t use(size_t param) {
    if (!place_[param]) return held_;
    Family& family = families_[place_[param]->family];
    const auto full = family.filling.use(place_[param]->index);
    if (!full) return held_;
    const int64_t buffers = family.trace.buffers.empty() ? 0 : family.trace.buffers[*full];
    if (family.trace.permanent && !overlaps_) {
      at_end_ = std::max(at_end_, buffers);
      return held_;
    }
    held_ += buffers - std::exchange(family.leaving, family.trace.bytes[*full] + buffers);
    const int64_t during = held_;
    if (!family.filling.leaving()) held_ -= std::exchange(family.leaving, 0);
    most_ = std::max(most_, held_);
    return during;
  }
  int64_t held() const { return held_; }
  // Buffers of permanent buckets that are reduced after the last action.
  int64_t at_end() const { return at_end_; }
  int64_t most() const { return most_; }

 private:
  struct Place {
    size_t family, index;
  };
  struct Family {
    TransientFamily trace;
    plan::FillingBuckets filling;
    int64_t leaving;  // bytes of the bucket in reduction
  };
  std::vector<std::optional<Place>> place_;  // by parameter; none if its bucket is persistent
  std::vector<Family> families_;
  bool overlaps_;
  int64_t held_ = 0, most_ = 0, at_end_ = 0;
};

struct P2pCall {
  bool done = false;
  void wait() { done = true; }
};

class TraceReplay {
 public:
  TraceReplay(const RankTrace& trace, const std::vector<ChunkTrace>& chunks, const plan::PipelineTable& table,
              int pp_rank)
      : trace_(trace),
        chunks_(chunks),
        table_(table),
        placement_(table.placement()),
        rank_(pp_rank),
        buckets_(trace, table.num_microbatches) {}

  ReplayPeaks run() {
    const std::vector<plan::Action>& actions = table_.ranks.at(static_cast<size_t>(rank_));
    for (size_t i = 0; i < actions.size();) {
      const plan::Action& action = actions[i];
      const size_t end = is_p2p(action.kind) ? call_end(actions, i) : i + (action.in_turns ? 2 : 1);
      at_ = i;
      before_ = now();
      if (is_p2p(action.kind)) {
        exchange(&actions[i], &actions[i] + (end - i));
      } else if (action.in_turns) {
        run({pass(actions[i + 1]), pass(action)});  // the backward begins, as in the executor
      } else if (is_compute(action.kind)) {
        run({pass(action)});
      } else {
        borders_.release({action.microbatch, action.chunk});
      }
      sample();
      i = end;
    }
    borders_.finish();
    peaks_.most = std::max(peaks_.most, now() + buckets_.at_end());
    int64_t held = now() - buckets_.held();
    for (const TraceStep& step : trace_.update.steps) run_step(step, held);
    peaks_.gradient_buckets = buckets_.most();
    return peaks_;
  }

 private:
  struct Pass {
    const plan::Action* action;
    const ActionTrace* trace;
    size_t region = 0, step = 0;  // the next ones
    int64_t most = 0;             // maximum bytes during the region
  };

  int64_t borders() const {
    int64_t sum = 0;
    borders_.for_each([&](int64_t bytes) { sum += bytes; });
    return sum;
  }
  int64_t now() const { return kept_ + borders() + buckets_.held(); }
  const ChunkTrace& chunk(const plan::Action& action) const { return chunks_.at(static_cast<size_t>(action.chunk)); }

  Pass pass(const plan::Action& action) const {
    const ChunkTrace& own = chunk(action);
    return {&action, action.kind == plan::ActionKind::forward    ? &own.forward
                     : action.kind == plan::ActionKind::backward ? &own.backward
                                                                 : &own.weight};
  }

  // Runs one pass, or two in turns.
  void run(std::vector<Pass> passes) {
    int64_t held = now();
    for (size_t turn = 0; !passes.empty(); turn = passes.size() > 1 ? 1 - turn : 0) {
      if (run_turn(passes[turn], held)) passes.erase(passes.begin() + static_cast<std::ptrdiff_t>(turn));
    }
  }

  // Runs a pass until the other one may run. Returns whether it has ended.
  bool run_turn(Pass& pass, int64_t& held) {
    const std::vector<IslandTrace>& regions = pass.trace->regions;
    if (pass.region == 0 && pass.step == 0) {
      peaks_.gathered = std::max(peaks_.gathered, pass.trace->gathered);
      held -= borders();
      held += take_border(*pass.action);
      held += borders();
    }
    for (; pass.region < regions.size(); ++pass.region, pass.step = 0) {
      const IslandTrace& region = regions[pass.region];
      if (pass.step == 0) pass.most = held;
      while (pass.step < region.steps.size()) {
        const TraceStep& step = region.steps[pass.step++];
        pass.most = std::max(pass.most, run_step(step, held));
        if (step.end == TraceStep::End::turn) return false;
      }
      if (region.block >= 0)
        peaks_.moments.push_back({at_, region.block, region.backward, pass.most - before_, before_});
    }
    kept_ += pass.trace->added;
    leave_border(*pass.action);
    return true;
  }

  // Replays one step from `held` bytes, which it updates. Returns the maximum.
  int64_t run_step(const TraceStep& step, int64_t& held) {
    int64_t most = held + step.most;
    held += step.net;
    const int64_t buckets = buckets_.held();
    if (step.end == TraceStep::End::opens) buckets_.open(step.param);
    const int64_t during = step.end == TraceStep::End::used ? buckets_.use(step.param) : buckets_.held();
    most = std::max(most, held + during - buckets);
    held += buckets_.held() - buckets;
    peaks_.most = std::max(peaks_.most, most);
    return most;
  }

  // Returns the bytes of the border tensor that an action consumes.
  int64_t take_border(const plan::Action& action) {
    const plan::StagePlace own{rank_, action.chunk};
    const plan::BorderKey key{action.microbatch, action.chunk};
    if (action.kind == plan::ActionKind::forward && !placement_.first(own)) return borders_.take_input(key);
    if (action.kind == plan::ActionKind::backward && !placement_.last(own)) return borders_.take_gradient(key);
    return 0;
  }
  void leave_border(const plan::Action& action) {
    const plan::StagePlace own{rank_, action.chunk};
    const ChunkTrace& from = chunk(action);
    const auto after = placement_.neighbour(own, 1), before = placement_.neighbour(own, -1);
    if (action.kind == plan::ActionKind::forward && after)
      borders_.leave_output(action.microbatch, own, *after, from.output_in_pool ? 0 : from.output);
    if (action.kind == plan::ActionKind::backward && before)
      borders_.leave_gradient(action.microbatch, own, *before, from.input_gradient_in_pool ? 0 : from.input);
  }
  void exchange(const plan::Action* begin, const plan::Action* end) {
    const auto call = std::make_shared<P2pCall>();
    for (const plan::Action* action = begin; action != end; ++action) {
      int64_t& bytes = borders_.slot(*action);
      if (!is_send(action->kind)) bytes = goes_forward(action->kind) ? chunk(*action).input : chunk(*action).output;
    }
    for (const plan::Action* action = begin; action != end; ++action) borders_.issued(*action, call);
  }

  void sample() {
    peaks_.most = std::max(peaks_.most, now());
    const int64_t crossing = borders();
    if (kept_ + crossing <= peaks_.activations + peaks_.borders) return;
    peaks_.activations = kept_;
    peaks_.borders = crossing;
  }

  const RankTrace& trace_;
  const std::vector<ChunkTrace>& chunks_;
  const plan::PipelineTable& table_;
  plan::StagePlacement placement_;
  int rank_;
  TransientBytes buckets_;
  plan::Borders<int64_t, P2pCall> borders_;
  ReplayPeaks peaks_;
  int64_t kept_ = 0;
  size_t at_ = 0;
  int64_t before_ = 0;
};

}  // namespace

ReplayPeaks replay_trace(const RankTrace& trace, const plan::PipelineTable& table, int pp_rank) {
  return replay_trace(trace, trace.chunks, table, pp_rank);
}

ReplayPeaks replay_trace(const RankTrace& trace, const std::vector<ChunkTrace>& chunks,
                         const plan::PipelineTable& table, int pp_rank) {
  return TraceReplay(trace, chunks, table, pp_rank).run();
}

}  // namespace metroplex::replay

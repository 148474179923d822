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
        in_turns(action, actions[i + 1]);
      } else if (action.kind == plan::ActionKind::forward) {
        forward(action);
      } else if (action.kind == plan::ActionKind::backward) {
        backward(action);
      } else if (action.kind == plan::ActionKind::weight) {
        run(chunk(action).weight, 0);
      } else {
        borders_.release({action.microbatch, action.chunk});
      }
      sample();
      i = end;
    }
    borders_.finish();
    peaks_.most = std::max(peaks_.most, now() + buckets_.at_end());
    region(trace_.update, now() - buckets_.held());
    peaks_.gradient_buckets = buckets_.most();
    return peaks_;
  }

 private:
  int64_t borders() const {
    int64_t sum = 0;
    borders_.for_each([&](int64_t bytes) { sum += bytes; });
    return sum;
  }
  int64_t now() const { return kept_ + borders() + buckets_.held(); }
  const ChunkTrace& chunk(const plan::Action& action) const { return chunks_.at(static_cast<size_t>(action.chunk)); }

  // Replays one autograd region from `held` bytes. Returns the bytes at its end.
  int64_t region(const IslandTrace& what, int64_t held) {
    int64_t most = held;
    for (const TraceStep& step : what.steps) {
      most = std::max(most, held + step.most);
      held += step.net;
      const int64_t buckets = buckets_.held();
      if (step.end == TraceStep::End::opens) buckets_.open(step.param);
      const int64_t during = step.end == TraceStep::End::used ? buckets_.use(step.param) : buckets_.held();
      most = std::max(most, held + during - buckets);
      held += buckets_.held() - buckets;
    }
    if (what.block >= 0) peaks_.moments.push_back({at_, what.block, what.backward, most - before_, before_});
    peaks_.most = std::max(peaks_.most, most);
    return held;
  }
  // `taken`: bytes of the border tensor that the action consumes.
  void run(const ActionTrace& what, int64_t taken) {
    peaks_.gathered = std::max(peaks_.gathered, what.gathered);
    int64_t held = now() + taken;
    for (const IslandTrace& each : what.regions) held = region(each, held);
    kept_ += what.added;
  }

  void forward(const plan::Action& action) {
    const plan::StagePlace own{rank_, action.chunk};
    run(chunk(action).forward, placement_.first(own) ? 0 : borders_.take_input({action.microbatch, action.chunk}));
    leave_output(action);
  }
  void backward(const plan::Action& action) {
    const plan::StagePlace own{rank_, action.chunk};
    run(chunk(action).backward, placement_.last(own) ? 0 : borders_.take_gradient({action.microbatch, action.chunk}));
    leave_gradient(action);
  }
  void leave_output(const plan::Action& action) {
    const plan::StagePlace own{rank_, action.chunk};
    if (const auto next = placement_.neighbour(own, 1))
      borders_.leave_output(action.microbatch, own, *next, chunk(action).output_in_pool ? 0 : chunk(action).output);
  }
  void leave_gradient(const plan::Action& action) {
    const plan::StagePlace own{rank_, action.chunk};
    if (const auto next = placement_.neighbour(own, -1))
      borders_.leave_gradient(action.microbatch, own, *next,
                              chunk(action).input_gradient_in_pool ? 0 : chunk(action).input);
  }
  // The passes take turns within regions, so the k-th region of one pass may overlap the regions k - 1, k, and k + 1
  // of the other. The peaks of two overlapping regions are added: an upper bound.
  void in_turns(const plan::Action& first, const plan::Action& second) {
    const plan::StagePlace ahead{rank_, first.chunk}, back{rank_, second.chunk};
    const ActionTrace &forward = chunk(first).forward, &backward = chunk(second).backward;
    peaks_.gathered = std::max({peaks_.gathered, forward.gathered, backward.gathered});
    int64_t held = now();
    if (!placement_.first(ahead)) held += borders_.take_input({first.microbatch, first.chunk});
    if (!placement_.last(back)) held += borders_.take_gradient({second.microbatch, second.chunk});
    struct Bytes {
      int64_t peak = 0, net = 0;  // above the start of the region
    };
    const auto run_region = [&](const ActionTrace& pass, size_t k, int64_t start) {
      if (k >= pass.regions.size()) return Bytes{};
      const int64_t most = std::exchange(peaks_.most, 0);
      Bytes bytes;
      bytes.net = region(pass.regions[k], start) - start;
      bytes.peak = std::max(peaks_.most - start, bytes.net);
      peaks_.most = std::max(most, peaks_.most);
      return bytes;
    };
    Bytes before_forward, before_backward;  // the regions k - 1
    int64_t before = held;
    for (size_t k = 0; k < std::max(forward.regions.size(), backward.regions.size()); ++k) {
      const Bytes ahead_bytes = run_region(forward, k, held);
      const Bytes back_bytes = run_region(backward, k, held + ahead_bytes.peak);
      peaks_.most = std::max({peaks_.most, before + before_forward.net + ahead_bytes.peak + before_backward.peak,
                              before + before_backward.net + back_bytes.peak + before_forward.peak});
      before = held;
      held += ahead_bytes.net + back_bytes.net;
      before_forward = ahead_bytes, before_backward = back_bytes;
    }
    kept_ += forward.added + backward.added;
    leave_output(first);
    leave_gradient(second);
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

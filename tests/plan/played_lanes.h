// Runs the 32 lanes of a warp one after the other: from the first, from the last, or in a new random order at each
// step. A lane that reads a value written by another lane in the same step then gives different plans.
#pragma once

#include <algorithm>
#include <array>
#include <random>

#include "plan/echo.h"
#include "plan/echo_lanes.h"

namespace metroplex::plan::echo_lanes {

class PlayedLanes {
 public:
  explicit PlayedLanes(uint64_t seed) : draw_(seed) {
    for (int i = 0; i < kLanes; ++i) order_[static_cast<size_t>(i)] = i;
  }

  template <class F>
  void each(int32_t count, const F& f) const {
    std::shuffle(order_.begin(), order_.end(), draw_);
    for (const int lane : order_) {
      for (int32_t i = lane; i < count; i += kLanes) f(i);
    }
  }
  template <class F>
  EchoKey best(int32_t count, const F& f) const {
    return reduce<EchoKey>(count, f, [](const EchoKey& a, const EchoKey& b) { return a < b ? b : a; });
  }
  template <class F>
  int64_t sum(int32_t count, const F& f) const {
    return reduce<int64_t>(count, f, [](int64_t a, int64_t b) { return a + b; });
  }
  template <class F>
  int64_t most(int32_t count, const F& f) const {
    return reduce<int64_t>(count, f, [](int64_t a, int64_t b) { return std::max(a, b); });
  }
  template <class F>
  void one(const F& f) const {
    f();
  }

 private:
  static constexpr int kLanes = 32;

  // As in a warp: each lane reduces its own values, then halves of the lanes combine.
  template <class T, class F, class Op>
  T reduce(int32_t count, const F& f, const Op& op) const {
    std::array<T, kLanes> lanes{};
    each(count, [&](int32_t i) {
      T& mine = lanes[static_cast<size_t>(i % kLanes)];
      mine = op(mine, f(i));
    });
    for (size_t offset = kLanes / 2; offset > 0; offset /= 2) {
      const std::array<T, kLanes> before = lanes;
      for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = op(before[lane], before[lane ^ offset]);
    }
    return lanes[0];
  }

  mutable std::mt19937_64 draw_;
  mutable std::array<int, kLanes> order_;
};

inline EchoPlan plan_in_lanes(const EchoCounts& counts, const EchoOptions& options, uint64_t seed) {
  const EchoSizes sizes = counts.sizes;
  const size_t ranks = static_cast<size_t>(sizes.ranks), experts = static_cast<size_t>(sizes.experts);
  const size_t replicas = static_cast<size_t>(sizes.replicas());
  EchoPlan plan{sizes, std::vector<int32_t>(replicas, 77), std::vector<int64_t>(replicas, 77),
                std::vector<int64_t>(ranks * replicas, 77), std::vector<int64_t>(ranks, 77)};
  std::vector<int64_t> wide(5 * ranks + experts + 3 * (replicas + experts + ranks), 77);
  std::vector<int32_t> narrow(ranks + 3 * (replicas + 2 * ranks), 77);
  size_t wide_at = 0, narrow_at = 0;
  const auto wide_of = [&](size_t size) { return wide.data() + (wide_at += size) - size; };
  const auto narrow_of = [&](size_t size) { return narrow.data() + (narrow_at += size) - size; };
  EchoLaneMemory memory{};
  memory.counts = counts.rows;
  memory.expert_rows = wide_of(experts);
  memory.loads = wide_of(ranks), memory.caps = wide_of(ranks);
  memory.column = wide_of(ranks), memory.remainder = wide_of(ranks);
  memory.order = narrow_of(ranks);
  for (EchoLaneFill& fill : memory.fills) {
    fill.owner = narrow_of(replicas), fill.used = narrow_of(ranks), fill.hot = narrow_of(ranks);
    fill.rows = wide_of(replicas), fill.left = wide_of(experts), fill.room = wide_of(ranks);
  }
  memory.owner = plan.owner.data(), memory.rows = plan.rows.data();
  memory.source_rows = plan.source_rows.data(), memory.final_loads = plan.final_loads.data();
  const PlayedLanes lanes(seed);
  EchoLaneProgram<PlayedLanes>(lanes,
                               {sizes.ranks, sizes.experts, sizes.slots, options.ranks_per_node, options.eps_bp,
                                options.planner == config::EchoPlanner::exact},
                               memory)
      .plan();
  return plan;
}

}  // namespace metroplex::plan::echo_lanes

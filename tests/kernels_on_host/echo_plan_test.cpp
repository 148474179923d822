// Replica plans by a warp equal those of the reference planner, and rows go to the destination slots of
// plan/echo_reroute. No lane reads a value that another lane may not have written yet.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "kernels/echo_plan.h"
#include "kernels_on_host/device_array.h"
#include "kernels_on_host/machine/machine.h"
#include "support/echo_reroute.h"

namespace metroplex::kernels_on_host::echo_plan_test {
namespace {
using plan::EchoPlan;
using plan::EchoSizes;

template <class T>
DeviceArray<T> make_output(int64_t count, const char* name) {
  return DeviceArray<T>(std::vector<T>(static_cast<size_t>(count)), Use::both, name);
}

struct Place {
  explicit Place(const EchoSizes& sizes)
      : owner(make_output<int32_t>(sizes.replicas(), "owner")),
        first(make_output<int32_t>(sizes.experts, "first")),
        next(make_output<int32_t>(sizes.replicas(), "next")),
        ends(make_output<int64_t>(sizes.replicas(), "ends")),
        source_rows(make_output<int64_t>(int64_t{sizes.ranks} * sizes.replicas(), "source_rows")),
        final_loads(make_output<int64_t>(sizes.ranks, "final_loads")),
        scratch(make_output<int64_t>(kernels::echo_plan_scratch(sizes), "scratch")),
        narrow_scratch(make_output<int32_t>(kernels::echo_plan_narrow_scratch(sizes), "narrow_scratch")) {}
  kernels::EchoPlanPlace place() {
    return {owner.data(),       first.data(),       next.data(),    ends.data(),
            source_rows.data(), final_loads.data(), scratch.data(), narrow_scratch.data()};
  }
  DeviceArray<int32_t> owner, first, next;
  DeviceArray<int64_t> ends, source_rows, final_loads, scratch;
  DeviceArray<int32_t> narrow_scratch;
};

template <class T>
std::vector<T> values(DeviceArray<T>& x, size_t count) {
  return {x.data(), x.data() + count};
}

std::vector<int64_t> draw_counts(const EchoSizes& sizes, std::mt19937_64& draw) {
  std::vector<int64_t> rows(static_cast<size_t>(sizes.ranks) * static_cast<size_t>(sizes.experts));
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint64_t hot = i % static_cast<size_t>(sizes.experts) % 7 == 3 ? 90 : 6;
    rows[i] = static_cast<int64_t>(draw() % hot);
  }
  return rows;
}

// The assignments of a rank in any order, each with its index among those for the same expert.
struct Assignments {
  std::vector<int64_t> experts, rows;
};
Assignments draw_assignments(const std::vector<int64_t>& counts, const EchoSizes& sizes, int rank,
                             std::mt19937_64& draw) {
  Assignments all;
  for (int e = 0; e < sizes.experts; ++e)
    all.experts.insert(all.experts.end(), static_cast<size_t>(counts[static_cast<size_t>(rank * sizes.experts + e)]),
                       e);
  all.experts.insert(all.experts.end(), 5, -1);
  std::shuffle(all.experts.begin(), all.experts.end(), draw);
  std::vector<int64_t> seen(static_cast<size_t>(sizes.experts), 0);
  for (const int64_t e : all.experts) all.rows.push_back(e < 0 ? -1 : seen[static_cast<size_t>(e)]++);
  return all;
}

void check(const EchoSizes& sizes, const plan::EchoOptions& options, std::mt19937_64& draw) {
  const std::vector<int64_t> rows = draw_counts(sizes, draw);
  const EchoPlan expected = plan_echo({rows.data(), sizes}, options);
  const DeviceArray<int64_t> counts(rows, Use::in, "counts");
  const int rank = static_cast<int>(draw() % static_cast<uint64_t>(sizes.ranks));
  Place by_warp(sizes), plain(sizes);
  kernels::echo_plan_cuda(counts.data(), by_warp.place(), {sizes, options, rank}, nullptr);
  kernels::echo_plan(counts.data(), plain.place(), {sizes, options, rank});
  for (Place* const place : {&by_warp, &plain}) {
    EXPECT_EQ(values(place->owner, expected.owner.size()), expected.owner);
    EXPECT_EQ(values(place->source_rows, expected.source_rows.size()), expected.source_rows);
    EXPECT_EQ(values(place->final_loads, expected.final_loads.size()), expected.final_loads);
  }
  const size_t replicas = expected.owner.size(), experts = static_cast<size_t>(sizes.experts);
  EXPECT_EQ(values(by_warp.first, experts), values(plain.first, experts));
  EXPECT_EQ(values(by_warp.next, replicas), values(plain.next, replicas));
  EXPECT_EQ(values(by_warp.ends, replicas), values(plain.ends, replicas));

  const Assignments all = draw_assignments(rows, sizes, rank, draw);
  const auto n = static_cast<int64_t>(all.experts.size());
  const std::vector<int32_t> chosen(all.experts.begin(), all.experts.end());
  const std::vector<int32_t> columns = echo_reroute(expected, rank, chosen);
  const DeviceArray<int64_t> given(all.experts, Use::in, "experts");
  std::vector<int64_t> moved = all.rows;
  for (int64_t& row : moved) row += 7;  // removed by the offsets
  const DeviceArray<int64_t> number(moved, Use::in, "rows"),
      offsets(std::vector<int64_t>(experts, -7), Use::in, "offsets");
  for (const bool on_warps : {true, false}) {
    DeviceArray<int64_t> out = make_output<int64_t>(n, "columns");
    const kernels::EchoColumnsPlace place{
        given.data(),        number.data(),       offsets.data(), by_warp.first.data(),
        by_warp.next.data(), by_warp.ends.data(), out.data()};
    if (on_warps) kernels::echo_columns_cuda(place, {sizes, n}, nullptr);
    else kernels::echo_columns(place, {sizes, n});
    EXPECT_EQ(values(out, all.experts.size()), std::vector<int64_t>(columns.begin(), columns.end())) << on_warps;
  }
}

TEST(EchoPlan, OfAWarpIsThatOfThePlainPlanner) {
  std::mt19937_64 draw(5);
  for (const uint64_t seed : orders_to_try()) {
    set_order({seed, {}});
    for (const EchoSizes sizes : {EchoSizes{2, 2, 1}, {3, 9, 1}, {4, 8, 2}, {8, 16, 1}, {37, 74, 1}, {40, 120, 2}}) {
      for (const config::EchoPlanner planner : {config::EchoPlanner::capfill, config::EchoPlanner::exact}) {
        SCOPED_TRACE(base::concat(sizes.ranks, " ranks, order ", seed));
        plan::EchoOptions options;
        options.planner = planner;
        options.ranks_per_node = 4;
        check(sizes, options, draw);
      }
    }
  }
  set_order({});
}

}  // namespace
}  // namespace metroplex::kernels_on_host::echo_plan_test

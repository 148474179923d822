// Plans of clones by a warp are those of the plain planner, and no lane reads what another may not have written yet.
#include <gtest/gtest.h>

#include <list>
#include <random>

#include "kernels_on_host/device_array.h"
#include "kernels_on_host/echo_plan.h"
#include "kernels_on_host/machine/machine.h"
#include "plan/echo.h"

namespace metroplex::kernels_on_host::echo_plan_test {
namespace {

using plan::EchoCounts;
using plan::EchoOptions;
using plan::EchoPlan;

class Arrays {
 public:
  int64_t* wide(size_t count, const char* name) {
    return wide_.emplace_back(std::vector<int64_t>(count), Use::both, name).data();
  }
  int32_t* narrow(size_t count, const char* name) {
    return narrow_.emplace_back(std::vector<int32_t>(count), Use::both, name).data();
  }
  template <class T>
  static std::vector<T> values(const T* data, size_t count) {
    return {data, data + count};
  }

 private:
  std::list<DeviceArray<int64_t>> wide_;
  std::list<DeviceArray<int32_t>> narrow_;
};

EchoPlan in_a_warp(const EchoCounts& counts, const EchoOptions& options) {
  const plan::EchoSizes sizes = counts.sizes;
  const size_t ranks = static_cast<size_t>(sizes.ranks), experts = static_cast<size_t>(sizes.experts);
  const size_t clones = static_cast<size_t>(sizes.clones());
  const DeviceArray<int64_t> given(std::vector<int64_t>(counts.rows, counts.rows + ranks * experts), Use::in,
                                   "counts");
  Arrays arrays;
  plan::EchoLaneMemory m{};
  m.counts = given.data();
  m.expert_rows = arrays.wide(experts, "expert_rows"), m.loads = arrays.wide(ranks, "loads");
  m.caps = arrays.wide(ranks, "caps"), m.order = arrays.narrow(ranks, "order");
  m.column = arrays.wide(ranks, "column"), m.remainder = arrays.wide(ranks, "remainder");
  for (plan::EchoLaneFill& fill : m.fills) {
    fill.owner = arrays.narrow(clones, "owner"), fill.used = arrays.narrow(ranks, "used");
    fill.hot = arrays.narrow(ranks, "hot"), fill.rows = arrays.wide(clones, "rows");
    fill.left = arrays.wide(experts, "left"), fill.room = arrays.wide(ranks, "room");
  }
  m.owner = arrays.narrow(clones, "plan.owner"), m.rows = arrays.wide(clones, "plan.rows");
  m.source_rows = arrays.wide(ranks * clones, "plan.source_rows"),
  m.final_loads = arrays.wide(ranks, "plan.final_loads");
  echo_plan_in_a_warp({sizes.ranks, sizes.experts, sizes.slots, options.ranks_per_node, options.eps_bp,
                       options.planner == config::EchoPlanner::exact},
                      m);
  return {sizes, Arrays::values(m.owner, clones), Arrays::values(m.rows, clones),
          Arrays::values(m.source_rows, ranks * clones), Arrays::values(m.final_loads, ranks)};
}

TEST(EchoPlan, OfAWarpIsThatOfThePlainPlanner) {
  std::mt19937_64 draw(5);
  for (const uint64_t seed : orders_to_try()) {
    set_order({seed, {}});
    for (const plan::EchoSizes sizes :
         {plan::EchoSizes{2, 2, 1}, {3, 9, 1}, {4, 8, 2}, {8, 16, 1}, {37, 74, 1}, {40, 120, 2}}) {
      std::vector<int64_t> rows(static_cast<size_t>(sizes.ranks) * static_cast<size_t>(sizes.experts));
      for (size_t i = 0; i < rows.size(); ++i) {
        const uint64_t hot = i % static_cast<size_t>(sizes.experts) % 7 == 3 ? 900 : 60;
        rows[i] = static_cast<int64_t>(draw() % hot);
      }
      for (const config::EchoPlanner planner : {config::EchoPlanner::capfill, config::EchoPlanner::exact}) {
        EchoOptions options;
        options.planner = planner;
        options.ranks_per_node = 4;
        const EchoCounts counts{rows.data(), sizes};
        EXPECT_EQ(in_a_warp(counts, options), plan_echo(counts, options)) << sizes.ranks << " ranks, order " << seed;
      }
    }
  }
  set_order({});
}

}  // namespace
}  // namespace metroplex::kernels_on_host::echo_plan_test

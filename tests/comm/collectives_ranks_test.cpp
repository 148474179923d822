#include "comm/collectives.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "comm/backends/counting.h"
#include "support/collective_checks.h"
#include "support/run_ranks.h"

namespace metroplex::comm::collectives_ranks_test {
namespace {

using test::run_ranks;

TEST(ThreadCollectives, ReturnWhatEachOperationPromisesForEveryTypeAndDim) {
  for (const int n : {1, 2, 3, 4}) {
    run_ranks(n, [](const World& world) { test::check_collectives(world.groups().tp); });
  }
}

TEST(ThreadCollectives, SumsInGroupOrderOnEveryRank) {
  run_ranks(3, [](const World& world) { test::check_sum_order(world.groups().tp); });
}

TEST(ThreadCollectives, ReduceSplitWorkOverManyPieces) {
  run_ranks(4, [](const World& world) { test::check_large(world.groups().tp); });
}

TEST(ThreadCollectives, AnAsynchronousOperationCompletesWhileItsOwnersDoSomethingElse) {
  run_ranks(2, [](const World& world) {
    const Group& group = world.groups().tp;
    const at::Tensor first = at::full({3}, 1.0 + group.index());
    const at::Tensor second = at::full({3}, 10.0 + group.index());
    Handle one = all_reduce_async(first, group);
    Handle two = all_reduce_async(second, group, ReduceOp::max);
    barrier(group);
    two.wait();  // in another order than issued
    one.wait();
    EXPECT_EQ(first[0].item<double>(), 3.0);
    EXPECT_EQ(second[0].item<double>(), 11.0);
  });
}

TEST(ThreadCollectives, ANanIsTheMaximumOnAnyRank) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const int nan_rank : {0, 1, 2}) {
      run_ranks(3, [&](const World& world) {
        const at::Tensor x = at::full({5}, 1.0 + world.rank(), type);
        if (world.rank() == nan_rank) x[2] = std::numeric_limits<double>::quiet_NaN();
        all_reduce(x, world.groups().world, ReduceOp::max);
        EXPECT_TRUE(x[2].isnan().item<bool>()) << nan_rank << " " << type;
        EXPECT_EQ(x[1].item<double>(), 3);
      });
    }
  }
}

TEST(ThreadCollectives, GatherInPlaceWhenTheInputIsASliceOfTheOutput) {
  run_ranks(4, [](const World& world) { test::check_in_place(world.groups().tp); });
}

TEST(ThreadCollectives, GroupsOfAGridDoNotDisturbEachOther) {
  run_ranks(8, {.tp = 2, .pp = 2, .dp = 2}, [](const World& world) {
    for (const Group* group : {&world.groups().tp, &world.groups().dp, &world.groups().pp, &world.groups().world,
                               &world.groups().model_parallel, &world.groups().batch}) {
      const at::Tensor sum = at::full({1}, static_cast<double>(world.rank()), at::kDouble);
      all_reduce(sum, *group);
      double expected = 0;
      for (const int rank : group->ranks()) expected += rank;
      EXPECT_EQ(sum.item<double>(), expected) << group->name();
    }
  });
}

TEST(CountingBackend, CountsCallsAndBytesOfEveryGroupAndMovesNothing) {
  auto traffic = std::make_shared<Traffic>();
  const topology::RankGrid grid = test::make_grid(8, {.tp = 2, .dp = 4});
  const World world = make_world(0, grid, count_traffic({}, traffic));
  const at::Tensor x = at::ones({6, 4});
  all_reduce(x, world.groups().tp);
  all_reduce(x, world.groups().tp);
  all_gather(x, 0, world.groups().dp);
  EXPECT_EQ(traffic->of("tp", "all_reduce").calls, 2);
  EXPECT_EQ(traffic->of("tp", "all_reduce").bytes, 2 * 6 * 4 * 4);
  EXPECT_EQ(traffic->of("dp", "all_gather").bytes, 4 * 6 * 4 * 4);
  EXPECT_EQ(traffic->of("dp", "all_reduce").calls, 0);
  EXPECT_EQ(x.sum().item<float>(), 24.0F);
}

TEST(CountingBackend, CountsAboveARealBackendToo) {
  auto traffic = std::make_shared<Traffic>();
  run_ranks(2, {.dp = 2},
            [](const World& world) {
              const at::Tensor x = at::ones({4}, at::kDouble);
              all_reduce(x, world.groups().dp);
              EXPECT_EQ(x[0].item<double>(), 2.0);
            },
            {.traffic = traffic});
  EXPECT_EQ(traffic->of("dp", "all_reduce").calls, 2);
  EXPECT_EQ(traffic->of("dp", "all_reduce").bytes, 2 * 32);
}

}  // namespace
}  // namespace metroplex::comm::collectives_ranks_test

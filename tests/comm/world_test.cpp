#include "comm/world.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "comm/backends/backend.h"
#include "comm/backends/counting.h"
#include "support/collective_checks.h"
#include "support/run_ranks.h"

namespace metroplex::comm::world_test {
namespace {

std::vector<std::string> made_on(int num_ranks, const test::Layout& layout, Groups& groups) {
  std::vector<std::string> names;
  const GroupFactory factory = share_communicators([&](const GroupSpec& spec) {
    names.push_back(spec.name);
    return make_counting_backend(spec.name, std::make_shared<Traffic>());
  });
  groups = make_groups(0, test::make_grid(num_ranks, layout), factory);
  return names;
}

TEST(World, GroupsOfEqualMembersAndPurposeShareACommunicator) {
  Groups groups;
  EXPECT_EQ(made_on(8, {.tp = 2, .pp = 2, .dp = 2}, groups),
            (std::vector<std::string>{"world", "stages", "checkpoint", "tp", "pp", "batch", "dp", "tp-pp",
                                      "tp-gradients"}));
  EXPECT_EQ(&groups.dp.backend(), &groups.dp_cp.backend());
  EXPECT_EQ(groups.dp.name(), "dp");
  EXPECT_EQ(groups.dp_cp.name(), "dp-cp");

  EXPECT_EQ(made_on(4, {.tp = 4}, groups), (std::vector<std::string>{"world", "checkpoint", "tp", "batch", "tp-pp"}));
  EXPECT_EQ(&groups.tp_gradients.backend(), &groups.model_parallel.backend());
}

TEST(World, NoTwoPurposesShareACommunicator) {
  for (const test::Layout& layout : {test::Layout{.tp = 2}, {.pp = 2}, {.dp = 2}, {.cp = 2}, {.tp = 2, .pp = 2}}) {
    Groups groups;
    made_on(layout.tp * layout.pp * layout.dp * layout.cp, layout, groups);
    std::map<const GroupBackend*, Purpose> purposes;
    for (const Group* group : {&groups.world, &groups.checkpoint, &groups.tp, &groups.cp, &groups.pp, &groups.stages,
                               &groups.batch, &groups.dp, &groups.dp_cp, &groups.model_parallel, &groups.tp_gradients,
                               &groups.etp, &groups.ep, &groups.edp}) {
      if (group->size() == 1) continue;
      EXPECT_EQ(purposes.emplace(&group->backend(), group->purpose()).first->second, group->purpose())
          << group->name();
    }
  }
}

TEST(World, AGroupForGradientsIsFoundByTheAxesThatItSpans) {
  using topology::Axis;
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = 2;
  parallel.pipeline_model_parallel_size = 2;
  parallel.expert_model_parallel_size = 2;
  parallel.expert_tensor_parallel_size = 1;
  const topology::RankGrid grid(16, parallel);
  const topology::AxisSet families[] = {Axis::tp, Axis::dp, {Axis::dp, Axis::cp}, {Axis::tp, Axis::pp}, Axis::etp,
                                        Axis::ep, Axis::edp};
  for (const int rank : {0, 5, 15}) {
    const World world = make_world(rank, grid, count_traffic({}, std::make_shared<Traffic>()));
    for (const topology::AxisSet axes : families) {
      const Group& group = world.groups().gradient_group(axes);
      EXPECT_EQ(group.ranks(), grid.group_ranks(rank, axes)) << topology::to_string(axes);
      EXPECT_EQ(group.purpose(), Purpose::gradients);
    }
    EXPECT_EQ(world.coordinates(), grid.coordinates(rank));
    EXPECT_THROW(world.groups().gradient_group({Axis::tp, Axis::dp}), std::logic_error);
  }
}

TEST(World, GroupsOfTwoPurposesAreUnderWayBesideEachOther) {
  test::run_ranks(2, {.dp = 2}, test::check_two_purposes);
}

TEST(World, WhatASharedCommunicatorCarriesIsCountedUnderTheNameOfEachGroup) {
  const auto traffic = std::make_shared<Traffic>();
  const GroupFactory factory = count_traffic(share_communicators([](const GroupSpec& spec) {
                                               return make_counting_backend(spec.name, std::make_shared<Traffic>());
                                             }),
                                             traffic);
  const Groups groups = make_groups(0, test::make_grid(2, {.dp = 2}), factory);
  groups.dp.backend().barrier();
  groups.dp_cp.backend().barrier();
  groups.dp_cp.backend().barrier();
  EXPECT_EQ(traffic->of("dp", "barrier").calls, 1);
  EXPECT_EQ(traffic->of("dp-cp", "barrier").calls, 2);
}

TEST(World, ProductsOfHalvesAreSummedInFp32WhereverRanksRun) {
  at::Context& torch = at::globalContext();
  torch.setAllowBF16ReductionCuBLAS(true);
  torch.setAllowFP16ReductionCuBLAS(true);
  test::run_ranks(1, {}, [&](const World&) {
    EXPECT_EQ(torch.allowBF16ReductionCuBLAS(), at::CuBLASReductionOption::DisallowReducedPrecisionAllowSplitK);
    EXPECT_EQ(torch.allowFP16ReductionCuBLAS(), at::CuBLASReductionOption::DisallowReducedPrecisionAllowSplitK);
  });
}

}  // namespace
}  // namespace metroplex::comm::world_test

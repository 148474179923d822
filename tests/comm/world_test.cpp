#include "comm/world.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "comm/backends/backend.h"
#include "comm/backends/counting.h"
#include "support/run_ranks.h"

namespace metroplex::comm::world_test {
namespace {

// The names of the communicators that rank 0 makes.
std::vector<std::string> made_on(int num_ranks, const test::Layout& layout, Groups& groups) {
  std::vector<std::string> names;
  const GroupFactory factory = shared([&](const std::string& name, const std::vector<int>&) {
    names.push_back(name);
    return make_counting_backend(name, std::make_shared<Traffic>());
  });
  groups = make_groups(0, test::grid_of(num_ranks, layout), factory);
  return names;
}

TEST(World, GroupsOfEqualMembersShareACommunicator) {
  Groups groups;
  EXPECT_EQ(made_on(8, {.tp = 2, .pp = 2, .dp = 2}, groups),
            (std::vector<std::string>{"world", "tp", "dp", "pp", "tp-pp", "embd", "batch"}));
  EXPECT_EQ(&groups.dp.backend(), &groups.dp_cp.backend());
  EXPECT_EQ(groups.dp.name(), "dp");
  EXPECT_EQ(groups.dp_cp.name(), "dp-cp");

  EXPECT_EQ(made_on(4, {.tp = 4}, groups), (std::vector<std::string>{"world", "batch"}));
  EXPECT_EQ(&groups.tp.backend(), &groups.world.backend());
  EXPECT_EQ(&groups.tp.backend(), &groups.model_parallel.backend());
}

TEST(World, AGroupIsFoundByTheAxesThatItSpans) {
  using topology::Axis;
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = 2;
  parallel.pipeline_model_parallel_size = 2;
  parallel.expert_model_parallel_size = 2;
  parallel.expert_tensor_parallel_size = 1;
  const topology::RankGrid grid(16, parallel);
  const topology::AxisSet families[] = {
      Axis::tp,  Axis::cp, Axis::dp, Axis::pp, {Axis::dp, Axis::cp}, {Axis::tp, Axis::pp},
      Axis::etp, Axis::ep, Axis::edp};
  for (const int rank : {0, 5, 15}) {
    const World world = make_world(rank, grid, counted({}, std::make_shared<Traffic>()));
    for (const topology::AxisSet axes : families)
      EXPECT_EQ(world.groups().over(axes).ranks(), grid.group_of(rank, axes)) << topology::to_string(axes);
    EXPECT_EQ(world.coordinates(), grid.coordinates(rank));
    EXPECT_THROW(world.groups().over({Axis::tp, Axis::dp}), std::logic_error);
  }
}

TEST(World, TheDataAndThePipelineKeepCommunicatorsOfTheirOwn) {
  Groups groups;
  made_on(4, {.tp = 2, .pp = 2}, groups);
  EXPECT_NE(&groups.batch.backend(), &groups.tp.backend());
  made_on(2, {.pp = 2}, groups);
  EXPECT_NE(&groups.pp.backend(), &groups.world.backend());
  EXPECT_NE(&groups.pp.backend(), &groups.embedding.backend());
  EXPECT_EQ(&groups.embedding.backend(), &groups.world.backend());
}

TEST(World, WhatASharedCommunicatorCarriesIsCountedUnderTheNameOfEachGroup) {
  const auto traffic = std::make_shared<Traffic>();
  const GroupFactory factory = counted(shared([](const std::string& name, const std::vector<int>&) {
                                         return make_counting_backend(name, std::make_shared<Traffic>());
                                       }),
                                       traffic);
  const Groups groups = make_groups(0, test::grid_of(2, {.dp = 2}), factory);
  groups.dp.backend().barrier();
  groups.dp_cp.backend().barrier();
  groups.dp_cp.backend().barrier();
  EXPECT_EQ(traffic->of("dp", "barrier").calls, 1);
  EXPECT_EQ(traffic->of("dp-cp", "barrier").calls, 2);
}

}  // namespace
}  // namespace metroplex::comm::world_test

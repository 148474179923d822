#include "echo_model/cost.h"

#include <gtest/gtest.h>

#include "plan/echo_cases.h"

namespace metroplex::bench::cost_test {
namespace {

using plan::echo_cases::Case;

// One rank's matmuls take 1 s per row, a byte takes 1 s near and 10 s far, a plan 7 s, a round nothing.
constexpr EchoMachine kPlain{"plain", 36, 1, 0.1, 2, 0, 7};

EchoLayer small_layer() {
  EchoLayer layer;
  layer.hidden = 2;  // 2 * 3 * 1 elements: 6 * 6 FLOP a row, 12 bytes of weights, 24 of gradients, 4 bytes a row
  layer.ffn = 1;
  layer.tokens = 3;
  return layer;
}

std::vector<EchoCopy> spread(int replicas, int ranks_between = 1) {
  std::vector<EchoCopy> copies;
  for (int i = 1; i <= replicas; ++i) copies.push_back({0, 0, i * ranks_between});
  return copies;
}

TEST(EchoCost, AddsUpByHand) {
  // Rank 0 owns experts 0 and 1. Source 0: 5 and 1 local, 2 to rank 1; source 1: 4 to rank 0, 1 local.
  const Case test_case{{2, 4, 1}, {5, 1, 2, 0, 4, 0, 0, 1}};
  const EchoPlacement home = echo_at_owner(test_case.counts());
  EXPECT_EQ(home.rows, (std::vector<int64_t>{6, 2, 4, 1}));
  EXPECT_EQ(home.loads(), (std::vector<int64_t>{10, 3}));
  EXPECT_DOUBLE_EQ(home.imbalance(), 10 / 6.5);
  const EchoCost plain = echo_cost(home, small_layer(), kPlain);
  EXPECT_DOUBLE_EQ(plain.compute, 10);      // rows of rank 0
  EXPECT_DOUBLE_EQ(plain.rows, 4 * 4 * 4);  // rank 1 sends 4 rows of 4 bytes, four times
  EXPECT_DOUBLE_EQ(plain.moe(), 10 + 64);

  plan::EchoPlan plan = plan::plan_echo(test_case.counts(), {.planner = config::EchoPlanner::exact});
  EXPECT_EQ(plan.owner, (std::vector<int32_t>{-1, 0}));
  EXPECT_EQ(plan.rows[1], 3);  // all of source 1, whose rank has the replica
  const EchoPlacement replicated = echo_placement(test_case.counts(), plan);
  EXPECT_EQ(replicated.rows, (std::vector<int64_t>{6, 2, 1, 4}));
  EXPECT_EQ(replicated.copies, (std::vector<EchoCopy>{{0, 0, 1}}));
  const EchoCost cost = echo_cost(replicated, small_layer(), kPlain);
  EXPECT_DOUBLE_EQ(cost.compute, 7);
  EXPECT_DOUBLE_EQ(cost.rows, 4 * 4 * 2);
  EXPECT_DOUBLE_EQ(cost.replicas, 2 * 12);  // before forward and before backward
  EXPECT_DOUBLE_EQ(cost.gradients, 24);
  EXPECT_DOUBLE_EQ(cost.plan, 7);
  EXPECT_DOUBLE_EQ(echo_cost(replicated, small_layer(), kPlain, {.resend = false}).replicas, 12);
  // 3 rows of 1 s less, for 7 + 24 + 24.
  const EchoGain gain = echo_gain(home, replicated, small_layer(), kPlain);
  EXPECT_DOUBLE_EQ(gain.gained, 3);
  EXPECT_DOUBLE_EQ(gain.paid, 55);
  EXPECT_FALSE(gain.worth());
  EchoMachine quick = kPlain;
  quick.link = quick.network = 1e9;
  quick.plan = 2.9;
  EXPECT_TRUE(echo_gain(home, replicated, small_layer(), quick).worth());
  quick.plan = 3;
  EXPECT_FALSE(echo_gain(home, replicated, small_layer(), quick).worth());
}

// Each direction of each rank has its time, inside a domain and outside.
TEST(EchoCost, ThePassOfRowsIsTheBusiestWays) {
  EchoPlacement to_one(4);  // domains {0, 1} and {2, 3}
  to_one.at(1, 0) = 30;
  EXPECT_DOUBLE_EQ(echo_cost(to_one, small_layer(), kPlain).rows, 4 * 4 * 30);
  to_one.at(2, 0) = 2;
  EXPECT_DOUBLE_EQ(echo_cost(to_one, small_layer(), kPlain).rows, 4 * 4 * 30);
  to_one.at(3, 0) = 2;  // 4 rows that rank 0 receives, ten times slower
  EXPECT_DOUBLE_EQ(echo_cost(to_one, small_layer(), kPlain).rows, 4 * 4 * 40);
  EchoPlacement from_one(4);
  from_one.at(0, 2) = from_one.at(0, 3) = 2;
  EXPECT_DOUBLE_EQ(echo_cost(from_one, small_layer(), kPlain).rows, 4 * 4 * 40);
  EchoPlacement stays(4);
  stays.at(2, 2) = 9;
  EXPECT_EQ(echo_cost(stays, small_layer(), kPlain).rows, 0);
  EXPECT_EQ(to_one.crossing(), 34);
  EXPECT_EQ(stays.crossing(), 0);
}

TEST(EchoCost, OtherWorkHidesGradients) {
  EchoPlacement placement(2);
  placement.copies = spread(1);
  EchoLayer layer = small_layer();
  layer.other_flops = 36;  // 3 tokens: 3 s forward, 6 s backward
  const EchoCost cost = echo_cost(placement, layer, kPlain);
  EXPECT_DOUBLE_EQ(cost.other, 9);
  EXPECT_DOUBLE_EQ(cost.gradients, 24 - 6);
  layer.other_flops = 360;
  EXPECT_DOUBLE_EQ(echo_cost(placement, layer, kPlain).gradients, 0);
}

// ceil(log2(replicas + 1)) rounds, or all from the owner.
TEST(EchoCost, ARelayTakesRoundsAndAHomeAloneTakesClones) {
  EchoMachine machine = kPlain;
  machine.domain = 64;
  const int rounds[] = {1, 2, 2, 3, 3, 3, 3, 4};
  for (int replicas = 1; replicas <= 8; ++replicas) {
    EXPECT_DOUBLE_EQ(echo_copy_seconds(spread(replicas), 64, 5, machine, true), 5 * rounds[replicas - 1]);
    EXPECT_DOUBLE_EQ(echo_copy_seconds(spread(replicas), 64, 5, machine, false), 5 * replicas);
  }
  EXPECT_DOUBLE_EQ(echo_copy_seconds(spread(63), 64, 5, machine, true), 5 * 6);
  EXPECT_EQ(echo_copy_seconds({}, 64, 5, machine, true), 0);
  machine.latency = 100;
  EXPECT_DOUBLE_EQ(echo_copy_seconds(spread(3), 64, 5, machine, true), 10 + 200);
  // The receive time of one rank may dominate.
  machine.latency = 0;
  const std::vector<EchoCopy> many{{0, 0, 3}, {1, 1, 3}, {2, 2, 3}};
  EXPECT_DOUBLE_EQ(echo_copy_seconds(many, 4, 5, machine, true), 15);
}

// Domains of two ranks: over the network to other domains once, then within each.
TEST(EchoCost, ARelayCrossesTheNetworkOncePerDomain) {
  EXPECT_DOUBLE_EQ(echo_copy_seconds(spread(1), 8, 5, kPlain, true), 5);
  EXPECT_DOUBLE_EQ(echo_copy_seconds(std::vector<EchoCopy>{{0, 0, 2}}, 8, 5, kPlain, true), 50);
  EXPECT_DOUBLE_EQ(echo_copy_seconds(std::vector<EchoCopy>{{0, 0, 2}, {0, 0, 3}}, 8, 5, kPlain, true), 50 + 5);
  EXPECT_DOUBLE_EQ(echo_copy_seconds(spread(7), 8, 5, kPlain, true), 2 * 50 + 5);
  EXPECT_DOUBLE_EQ(echo_copy_seconds(spread(7), 8, 5, kPlain, false), 6 * 50);
}

TEST(EchoCost, ForcedBalanceIsTheLeast) {
  const EchoPlacement even = echo_balanced(4, 10);
  EXPECT_EQ(even.loads(), (std::vector<int64_t>{10, 10, 10, 10}));
  EXPECT_DOUBLE_EQ(even.imbalance(), 1);
  EXPECT_DOUBLE_EQ(echo_balanced(4, 0).imbalance(), 1);
  EXPECT_DOUBLE_EQ(echo_cost(echo_balanced(4, 0), small_layer(), kPlain).total(), 0);
  std::mt19937_64 draw(3);
  for (int i = 0; i < 50; ++i) {
    const Case test_case = plan::echo_cases::zipf({16, 64, 2}, 0.3 + 0.02 * i, 4096, draw);
    const double plain = echo_cost(echo_at_owner(test_case.counts()), small_layer(), kPlain).compute;
    const plan::EchoPlan plan = plan::plan_echo(test_case.counts(), {.planner = config::EchoPlanner::capfill});
    const EchoPlacement replicated = echo_placement(test_case.counts(), plan);
    EXPECT_EQ(replicated.loads(), plan.final_loads);
    const double compute = echo_cost(replicated, small_layer(), kPlain).compute;
    EXPECT_LT(compute, plain);
    EXPECT_GE(compute, echo_cost(echo_balanced(16, test_case.total() / 16), small_layer(), kPlain).compute);
  }
}

// UltraEP's README v1.0.0: bf16 weights of an expert of 3 x 1536 x 4096. The fullest owner sends them to 4, 5 and 6
// replicas one after the other, at 706, 712 and 715 GB/s: 0.214, 0.265 and 0.317 ms.
TEST(EchoCost, DirectCopiesTakeWhatUltraEpPublishes) {
  const double rates[] = {706e9, 712e9, 715e9}, published[] = {0.214e-3, 0.265e-3, 0.317e-3};
  for (int i = 0; i < 3; ++i) {
    EchoMachine machine = kPlain;
    machine.domain = 64;
    machine.link = rates[i];
    // Half of the last digit, and half of the rate's.
    EXPECT_NEAR(echo_copy_seconds(spread(4 + i), 64, 3 * 1536 * 4096 * 2, machine, false), published[i], 0.8e-6);
  }
}

TEST(EchoCost, MachinesAreStatedInOneUnit) {
  for (const EchoMachine& machine : echo_machines()) {
    EXPECT_GT(machine.flops, 1e11) << machine.name;
    EXPECT_GE(machine.link, machine.network) << machine.name;
    EXPECT_GT(machine.network, 1e9) << machine.name;
    EXPECT_LT(machine.plan, 1e-3) << machine.name;
    EXPECT_LT(machine.latency, 1e-4) << machine.name;
  }
}

}  // namespace
}  // namespace metroplex::bench::cost_test

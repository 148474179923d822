// Times of operators and collectives, computed by hand.
#include <cmath>
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "price/machine.h"

namespace metroplex::test::cost_test {
namespace {

using price::Cluster;
using price::Machine;
using price::Operator;

Machine machine() {
  Machine machine;
  machine.peak_flops = {{"bf16", 100.0}};
  machine.memory_bytes_per_s = 10;
  machine.shares["matmul"] = {{1, 0.25}, {100, 1.0}};
  return machine;
}

TEST(OperatorCost, TakesTheSlowerOfComputeAndMemory) {
  EXPECT_DOUBLE_EQ(operator_seconds(machine(), {"mm", "bf16", 1000, 10}), 10);   // 1000 / (100 * 1)
  EXPECT_DOUBLE_EQ(operator_seconds(machine(), {"mm", "bf16", 1000, 500}), 50);  // 500 / 10
  EXPECT_DOUBLE_EQ(operator_seconds(machine(), {"copy", "bf16", 0, 20}), 2);
  EXPECT_DOUBLE_EQ(operator_seconds(machine(), {"empty", "bf16", 0, 0}), 0);
  EXPECT_THROW(operator_seconds(machine(), {"mm", "fp8", 1000, 10}), base::Error);
}

// A product has the share of one in bf16 that takes as long: at a tenth of the rate, of ten times the FLOPs.
TEST(OperatorCost, SharesOfOtherTypesAreThoseOfEqualTimes) {
  Machine other = machine();
  other.peak_flops["fp32"] = 10;
  // A few roundings of 2^-53 in logarithms below 2, of a result of 0.2.
  EXPECT_NEAR(operator_seconds(other, {"mm", "fp32", 1, 0}), 1 / (10 * 0.5), 1e-15);
  EXPECT_DOUBLE_EQ(operator_seconds(other, {"mm", "bf16", 1, 0}), 1 / (100 * 0.25));
  other.peak_flops = {{"fp32", 10.0}};
  EXPECT_DOUBLE_EQ(operator_seconds(other, {"mm", "fp32", 1, 0}), 1 / (10 * 0.25));
}

TEST(OperatorCost, InterpolatesLogarithmically) {
  // Half way between 1 and 100 in the logarithm: the geometric mean of 0.25 and 1.
  EXPECT_NEAR(price::interpolate(machine().shares["matmul"], 10), 0.5, 1e-15);
  EXPECT_DOUBLE_EQ(price::interpolate(machine().shares["matmul"], 0.1), 0.25);
  EXPECT_DOUBLE_EQ(price::interpolate(machine().shares["matmul"], 1e6), 1);
}

TEST(OperatorCost, PrefersMeasuredTimes) {
  Machine measured = machine();
  measured.measured["mm bf16"] = {{10, 0, 2}, {1000, 0, 20}};
  measured.measured["copy bf16"] = {{0, 10, 2}, {0, 1000, 20}};
  EXPECT_NEAR(operator_seconds(measured, {"mm", "bf16", 1000, 0}), 20, 1e-9);
  EXPECT_DOUBLE_EQ(operator_seconds(measured, {"mm", "bf16", 1, 0}), 2);  // as for 10: a fixed cost
  // Half way in the logarithm: the geometric mean of the rates 5 and 50.
  EXPECT_NEAR(operator_seconds(measured, {"mm", "bf16", 100, 0}), 100 / std::sqrt(5.0 * 50.0), 1e-9);
  EXPECT_DOUBLE_EQ(operator_seconds(measured, {"copy", "bf16", 0, 2000}), 120);  // 20 + 1000 bytes / 10
}

TEST(OperatorCost, TellsProductsOfEqualWorkByTheirBytes) {
  Machine measured = machine();
  measured.measured["mm bf16"] = {{1000, 10, 1}, {1000, 1000, 5}, {10, 10, 0.5}};
  EXPECT_NEAR(operator_seconds(measured, {"mm", "bf16", 1000, 10}), 1, 1e-9);
  EXPECT_NEAR(operator_seconds(measured, {"mm", "bf16", 1000, 1000}), 5, 1e-9);
  EXPECT_LT(operator_seconds(measured, {"mm", "bf16", 1000, 20}), std::sqrt(5.0));
}

TEST(OperatorCost, ChargesTheHostPerCall) {
  Machine calibrated = machine();
  calibrated.launch_s = 7;
  EXPECT_DOUBLE_EQ(issue_seconds(calibrated, {"mm", "bf16"}), 7);
  calibrated.library_call_s = 2, calibrated.own_call_s = 3;
  EXPECT_DOUBLE_EQ(issue_seconds(calibrated, {"aten::add", "bf16"}), 2);
  EXPECT_DOUBLE_EQ(issue_seconds(calibrated, {"norm_forward", "bf16"}), 3);
  calibrated.byte_s = 0.5;
  EXPECT_DOUBLE_EQ(issue_seconds(calibrated, {"norm_forward", "bf16", 0, 10}), 3 + 5);
}

std::vector<int> members(int count, int stride) {
  std::vector<int> all;
  for (int i = 0; i < count; ++i) all.push_back(i * stride);
  return all;
}

TEST(CollectiveCost, CountsRingBytes) {
  const Cluster cluster{{{"link", 0, {0.5, 10}}}};
  EXPECT_DOUBLE_EQ(cluster.collective_cost("all_gather", members(4, 1), 80).seconds(), 0.5 + 6);
  EXPECT_DOUBLE_EQ(cluster.collective_cost("reduce_scatter", members(4, 1), 80).seconds(), 0.5 + 6);
  EXPECT_DOUBLE_EQ(cluster.collective_cost("all_to_all", members(4, 1), 80).seconds(), 0.5 + 6);
  EXPECT_DOUBLE_EQ(cluster.collective_cost("exchange_rows", members(4, 1), 80).seconds(), 0.5 + 6);
  EXPECT_DOUBLE_EQ(cluster.collective_cost("all_reduce", members(4, 1), 80).seconds(), 0.5 + 12);
  EXPECT_DOUBLE_EQ(cluster.collective_cost("broadcast", members(4, 1), 80).seconds(), 0.5 + 8);
  EXPECT_DOUBLE_EQ(cluster.collective_cost("barrier", members(4, 1), 0).seconds(), 0.5);
  EXPECT_DOUBLE_EQ(cluster.collective_cost("all_gather", members(1, 1), 80).seconds(), 0);
}

// Nodes of 4 ranks: 1 s and 2 s a step inside, 10 s and 20 s between.
TEST(CollectiveCost, AddsTheLatencyOfEveryStep) {
  const Cluster cluster{{{"nvlink", 4, {1, 1}, 2}, {"network", 0, {10, 1}, 20}}};
  const auto latency = [&](const char* operation, int count, int stride) {
    return cluster.collective_cost(operation, members(count, stride), 0).seconds();
  };
  EXPECT_DOUBLE_EQ(latency("all_gather", 2, 1), 1);
  EXPECT_DOUBLE_EQ(latency("all_gather", 4, 1), 1 + 2 * 2);             // 3 steps of a ring
  EXPECT_DOUBLE_EQ(latency("reduce_scatter", 3, 1), 1 + 2);             // 2 steps
  EXPECT_DOUBLE_EQ(latency("all_reduce", 4, 1), 1 + 3 * 2);             // 2 trees of 2 steps
  EXPECT_DOUBLE_EQ(latency("all_to_all", 4, 1), 1);                     // all at once
  EXPECT_DOUBLE_EQ(latency("broadcast", 4, 1), 1 + 2);                  // 2 doublings
  EXPECT_DOUBLE_EQ(latency("all_gather", 8, 4), 10 + 2 * 20);           // 8 nodes: 3 doublings
  EXPECT_DOUBLE_EQ(latency("all_gather", 12, 1), 1 + 2 * 2 + 10 + 20);  // 3 nodes of 4: 2 doublings
  EXPECT_DOUBLE_EQ(latency("exchange_rows", 12, 1), 1 + 10);
}

// Nodes of 4 ranks: 100 bytes/s inside, 10 bytes/s between.
TEST(CollectiveCost, CrossesNodesOverEveryLink) {
  const Cluster cluster{{{"nvlink", 4, {0, 100}}, {"network", 0, {0, 10}}}};
  // One member per node: 7/8 of the tensor over one link.
  EXPECT_DOUBLE_EQ(cluster.collective_cost("all_gather", members(8, 4), 800).seconds(), 70);
  // Four members per node, two nodes: each link carries a quarter of the other node's half.
  EXPECT_DOUBLE_EQ(cluster.collective_cost("all_gather", members(8, 1), 800).seconds(), 10);
  // In a node.
  EXPECT_DOUBLE_EQ(cluster.collective_cost("all_gather", members(4, 1), 800).seconds(), 6);
  // All-to-all: half of the rows leave the node, over each rank's own link.
  EXPECT_DOUBLE_EQ(cluster.collective_cost("all_to_all", members(8, 1), 800).seconds(), 40);
  EXPECT_DOUBLE_EQ(cluster.between(0, 3).bytes_per_s, 100);
  EXPECT_DOUBLE_EQ(cluster.between(3, 4).bytes_per_s, 10);
}

}  // namespace
}  // namespace metroplex::test::cost_test

#include "echo_model/rivals.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/echo_cases.h"

namespace metroplex::bench::rivals_test {
namespace {

using plan::echo_cases::Case;

int64_t count_rows(const EchoPlacement& placement, int source) {
  int64_t sum = 0;
  for (int rank = 0; rank < placement.ranks; ++rank) sum += placement.at(source, rank);
  return sum;
}

// Nothing is lost, nothing is negative, and a rank has the weights of every remote expert that it computes.
void expect_whole(const Case& test_case, const EchoPlacement& placement) {
  const EchoPlacement home = echo_at_owner(test_case.counts());
  EXPECT_EQ(placement.total(), test_case.total());
  for (int source = 0; source < test_case.sizes.ranks; ++source)
    EXPECT_EQ(count_rows(placement, source), count_rows(home, source)) << text_of(test_case);
  EXPECT_GE(*std::min_element(placement.rows.begin(), placement.rows.end()), 0) << text_of(test_case);
  for (const EchoCopy& copy : placement.copies) EXPECT_NE(copy.from, copy.to) << text_of(test_case);
}

// The example of EPLB's README: 12 experts of 2 layers, 16 replicas, 4 groups, 2 nodes, 8 GPUs.
TEST(EchoRivals, EplbPlacesTheExampleOfItsReadme) {
  const EplbSizes sizes{16, 4, 2, 8};
  const std::vector<float> first{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86};
  EXPECT_EQ(eplb_replicas(first, sizes), (std::vector<int32_t>{5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1}));
  const std::vector<float> second{20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27};
  EXPECT_EQ(eplb_replicas(second, sizes), (std::vector<int32_t>{7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1}));
}

TEST(EchoRivals, EplbIsGlobalWhereNodesDoNotDivideTheGroups) {
  const std::vector<float> weights{8, 1, 1, 2};
  EXPECT_EQ(eplb_replicas(weights, {6, 3, 2, 2}), eplb_replicas(weights, {6, 1, 1, 2}));
  // Expert 0 is replicated twice: 8 / 3 three times; then heaviest first, to the lighter of two ranks with free
  // capacity.
  EXPECT_EQ(eplb_replicas(weights, {6, 1, 1, 2}), (std::vector<int32_t>{0, 0, 2, 0, 3, 1}));
  // If two have equal rows, the first is replicated.
  EXPECT_EQ(eplb_replicas(std::vector<float>{4, 4, 1, 1}, {5, 1, 1, 1}), (std::vector<int32_t>{1, 0, 0, 2, 3}));
}

TEST(EchoRivals, EplbDealsAnExpertsRowsToItsReplicasInTurn) {
  const Case test_case{{2, 2, 0}, {7, 1, 5, 0}};
  const std::vector<int32_t> replicas{0, 1, 0, -1};
  const EchoPlacement placement = eplb_placement(test_case.counts(), replicas);
  EXPECT_EQ(placement.rows, (std::vector<int64_t>{4 + 1, 3, 2, 3}));  // an odd row of source 1 goes to the second
  EXPECT_EQ(placement.away, 3 + 1 + 3);
  EXPECT_EQ(placement.persistent, (std::vector<EchoCopy>{{0, 0, 1}}));
  EXPECT_TRUE(placement.copies.empty());
  // From {0, -} and {1, -}: rank 0 needs expert 1, rank 1 needs expert 0.
  const std::vector<int32_t> start = eplb_start({2, 2, 0}, 4);
  EXPECT_EQ(start, (std::vector<int32_t>{0, -1, 1, -1}));
  EXPECT_EQ(eplb_moves(start, replicas, 2), (std::vector<EchoCopy>{{1, 1, 0}, {0, 0, 1}}));
  EXPECT_EQ(eplb_moves(start, std::vector<int32_t>{1, 1, 0, 0}, 2), (std::vector<EchoCopy>{{1, 1, 0}, {0, 0, 1}}));
}

TEST(EchoRivals, AShadowIsMadeAsLongAsTheModelSaysThatItPays) {
  // A row takes 1 s of matmuls and none to send (links of 1e30), so that only weights matter: 6 * 2 / 12 = 1.
  EchoLayer layer;
  layer.hidden = 1;
  layer.ffn = 1;
  layer.matrices = 2;
  const Case test_case{{2, 4, 0}, {50, 20, 4, 1, 50, 20, 4, 1}};  // 100, 40, 8, 2
  EXPECT_EQ(select_shadows(test_case.counts(), layer, 12, 1e30), (std::vector<int32_t>{0, 1, 2}));
  // A row is 4 * 2 bytes both ways, weights 4: with 1 byte per second rows cost 1 + 8, a shadow 4.
  EXPECT_EQ(select_shadows(test_case.counts(), layer, 12, 1), (std::vector<int32_t>{0, 1, 2}));
  // Weights of 4 * 100 s: from 100 to 40 rows saves 60 * 9, from 40 to 8 only 32 * 9.
  layer.weight_bytes = 200;
  EXPECT_EQ(select_shadows(test_case.counts(), layer, 12, 1), (std::vector<int32_t>{0}));
  const EchoPlacement placement = shadow_placement(test_case.counts(), std::vector<int32_t>{0});
  EXPECT_EQ(placement.rows, (std::vector<int64_t>{50 + 20, 5, 20, 50 + 5}));
  EXPECT_EQ(placement.copies, (std::vector<EchoCopy>{{0, 0, 1}}));
}

TEST(EchoRivals, LlepSpillsToTheLeastLoaded) {
  const LlepOptions options{1, 1, 1.3};
  // Mean 10. The owner of expert 0 has capacity for 9, because one row of expert 1 follows; the rest goes to rank 2.
  const std::vector<int64_t> rows{20, 1, 4, 4, 1, 0};
  EXPECT_EQ(llep_chunks(rows, 3, options),
            (std::vector<LlepChunk>{{0, 0, 9}, {0, 2, 9}, {0, 1, 2}, {2, 1, 4}, {3, 1, 4}, {1, 0, 1}, {4, 2, 1}}));
  // Chunks of less than 5 are too small unless they are the last: rank 1 has capacity for 2 only.
  EXPECT_EQ(llep_chunks(std::vector<int64_t>{20, 1, 4, 4, 1, 0}, 3, {1, 5, 1.3})[2], (LlepChunk{0, 1, 2}));
  // Neither rank has capacity for all 11 excess rows, so the least loaded takes them anyway; its own expert then
  // exceeds its capacity.
  EXPECT_EQ(llep_chunks(std::vector<int64_t>{21, 0, 4, 4, 1, 0}, 3, {1, 12, 1.3}),
            (std::vector<LlepChunk>{{0, 0, 10}, {0, 2, 11}, {2, 1, 4}, {3, 1, 4}, {4, 1, 1}}));
}

TEST(EchoRivals, LlepLeavesSmallImbalanceAlone) {
  const Case test_case{{2, 2, 0}, {60, 50, 60, 50}};
  EXPECT_TRUE(llep_placement(test_case.counts()).copies.empty());
  const EchoPlacement moved = llep_placement(test_case.counts(), {1, 1, 1.05});
  EXPECT_EQ(moved.copies, (std::vector<EchoCopy>{{0, 0, 1}}));
  // The last rows of the expert move: those of source 1.
  EXPECT_EQ(moved.rows, (std::vector<int64_t>{60, 50, 50, 60}));
}

TEST(EchoRivals, NoRivalLosesARow) {
  std::mt19937_64 draw(11);
  EchoLayer layer;
  layer.hidden = 64;
  layer.ffn = 32;
  for (int i = 0; i < 300; ++i) {
    const Case test_case =
        plan::echo_cases::random_case(plan::echo_cases::random_sizes(draw), i % plan::echo_cases::kHuge, draw);
    std::vector<float> weights(static_cast<size_t>(test_case.sizes.experts), 0);
    for (size_t at = 0; at < test_case.rows.size(); ++at)
      weights[at % weights.size()] += static_cast<float>(test_case.rows[at]);
    const int replicas = test_case.sizes.experts + test_case.sizes.ranks;
    const std::vector<int32_t> placed = eplb_replicas(weights, {replicas, 1, 1, test_case.sizes.ranks});
    for (int expert = 0; expert < test_case.sizes.experts; ++expert)
      EXPECT_NE(std::find(placed.begin(), placed.end(), expert), placed.end()) << text_of(test_case);
    expect_whole(test_case, eplb_placement(test_case.counts(), placed));
    expect_whole(test_case,
                 shadow_placement(test_case.counts(), select_shadows(test_case.counts(), layer, 1e6, 1e4)));
    const EchoPlacement spilled = llep_placement(test_case.counts(), {1, 1, 1.0});
    expect_whole(test_case, spilled);
    // With chunks of any size only the rounding of the mean exceeds it.
    const std::vector<int64_t> loads = spilled.loads();
    EXPECT_LE(*std::max_element(loads.begin(), loads.end()),
              test_case.total() / test_case.sizes.ranks + test_case.sizes.ranks)
        << text_of(test_case);
  }
}

}  // namespace
}  // namespace metroplex::bench::rivals_test

// Blocks of queries and keys against the mask's definition; number of kernel calls for the splits of context
// parallelism.
#include "nn/attention_blocks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace metroplex::test::attention_blocks_test {
namespace {

using Ranges = std::vector<nn::IndexRange>;

std::vector<int64_t> list_positions(const Ranges& ranges) {
  std::vector<int64_t> all;
  for (const nn::IndexRange& range : ranges) {
    for (int64_t i = 0; i < range.count; ++i) all.push_back(range.first + i);
  }
  return all;
}

Ranges random_ranges(std::mt19937& random, int64_t whole) {
  Ranges ranges;
  for (int64_t first = 0; first < whole;) {
    const int64_t count = std::min<int64_t>(whole - first, 1 + static_cast<int64_t>(random() % 5));
    if (random() % 2 == 0) ranges.push_back({first, count});
    first += count;
  }
  return ranges;
}

TEST(AttentionBlocks, HaveEachPairThatIsSeenOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    const auto whole = static_cast<int64_t>(1 + random() % 30);
    const Ranges queries = random_ranges(random, whole),
                 keys = round % 3 == 0 ? queries : random_ranges(random, whole);
    const std::vector<int64_t> of_queries = list_positions(queries), of_keys = list_positions(keys);
    std::vector<std::vector<int>> times(of_queries.size(), std::vector<int>(of_keys.size()));
    const int64_t window = round % 2 == 0 ? -1 : static_cast<int64_t>(random() % 9);
    const int64_t chunk = round % 4 == 0 ? static_cast<int64_t>(1 + random() % 12) : 0;
    nn::IndexRange last{-1, 0};
    size_t of_same = 0;
    for (const nn::AttentionBlock& block : nn::attention_blocks(queries, keys, window, chunk)) {
      const int64_t end = block.queries.first + block.queries.count, given = last.first + last.count;
      of_same = block.queries.first == last.first ? of_same + 1 : 1;
      EXPECT_TRUE(of_same <= 2 || window >= 0);
      EXPECT_TRUE(block.queries.first >= given || end <= given);
      EXPECT_TRUE(block.window < 0 || block.queries.count <= block.keys.count);
      if (end > given) last = block.queries;
      ASSERT_TRUE(!block.causal || block.queries.count == block.keys.count);
      ASSERT_TRUE(block.queries.count > 0 && block.keys.count > 0);
      for (int64_t i = 0; i < block.queries.count; ++i) {
        const int64_t unseen = i + block.keys.count - block.queries.count - block.window;
        ASSERT_TRUE(block.window < 0 || unseen < block.keys.count) << "a query that sees nothing";
        for (int64_t j = block.window < 0 ? 0 : std::max<int64_t>(0, unseen);
             j < (block.causal ? i + 1 : block.keys.count); ++j)
          ++times[static_cast<size_t>(block.queries.first + i)][static_cast<size_t>(block.keys.first + j)];
        if (block.causal) {
          ASSERT_EQ(of_queries[static_cast<size_t>(block.queries.first + i)],
                    of_keys[static_cast<size_t>(block.keys.first + i)]);
        }
      }
    }
    for (size_t i = 0; i < of_queries.size(); ++i) {
      for (size_t j = 0; j < of_keys.size(); ++j)
        ASSERT_EQ(times[i][j], of_keys[j] <= of_queries[i] && (window < 0 || of_queries[i] - of_keys[j] <= window) &&
                                   (chunk == 0 || of_queries[i] / chunk == of_keys[j] / chunk))
            << "round " << round << ", " << i << ", " << j;
    }
  }
}

std::string format_blocks(const std::vector<nn::AttentionBlock>& blocks) {
  std::string out;
  for (const auto& [q, k, causal, window] : blocks) {
    out += (out.empty() ? "" : "; ") + std::to_string(q.first) + "+" + std::to_string(q.count) +
           (causal ? " causal " : " see ") + std::to_string(k.first) + "+" + std::to_string(k.count);
    if (window >= 0) out += " (" + std::to_string(window) + ")";
  }
  return out;
}

// The zigzag split of 16 positions over 2 ranks: one call for each rank's keys, as in other ring attention
// implementations.
TEST(AttentionBlocks, OfAZigzagRingAreOneCallAHop) {
  const Ranges first{{0, 4}, {12, 4}}, second{{4, 4}, {8, 4}};
  EXPECT_EQ(format_blocks(nn::attention_blocks(first, first)), "0+8 causal 0+8");
  EXPECT_EQ(format_blocks(nn::attention_blocks(second, first)), "0+8 see 0+4");
  EXPECT_EQ(format_blocks(nn::attention_blocks(first, second)), "4+4 see 0+8");
  EXPECT_EQ(format_blocks(nn::attention_blocks(first, {{0, 16}})), "0+4 causal 0+4; 4+4 see 0+12; 4+4 causal 12+4");
  EXPECT_EQ(format_blocks(nn::attention_blocks(second, {{0, 16}})), "0+8 see 0+4; 0+8 causal 4+8");
  EXPECT_EQ(format_blocks(nn::attention_blocks({{0, 8}}, {{8, 8}})), "");
  EXPECT_EQ(format_blocks(nn::attention_blocks({{8, 8}}, {{0, 8}})), "0+8 see 0+8");
}

// A window shorter than a chunk reaches only into the previous chunk.
TEST(AttentionBlocks, OfAWindowAreOneCallAChunkAndOneForTheKeysBeforeIt) {
  const Ranges first{{0, 4}, {12, 4}}, second{{4, 4}, {8, 4}};
  EXPECT_EQ(format_blocks(nn::attention_blocks(first, first, 2)), "0+4 causal 0+4 (2); 4+4 causal 4+4 (2)");
  EXPECT_EQ(format_blocks(nn::attention_blocks(first, second, 2)), "4+2 see 6+2 (0)");
  EXPECT_EQ(format_blocks(nn::attention_blocks(second, first, 2)), "0+2 see 2+2 (0)");
  EXPECT_EQ(format_blocks(nn::attention_blocks(second, first, 7)), "0+4 see 0+4; 4+3 see 1+3 (0)");
  EXPECT_EQ(format_blocks(nn::attention_blocks(second, first, 20)), "0+4 see 0+4; 4+4 see 0+4");
  EXPECT_EQ(format_blocks(nn::attention_blocks({{2, 6}}, {{0, 8}}, 4)),
            "0+6 causal 2+6 (4); 0+2 see 0+2; 2+2 see 0+2 (0)");
}

// Each chunk is a call of its own; ranks with other chunks receive keys that no query sees.
TEST(AttentionBlocks, OfChunksAreOneCallAChunk) {
  const Ranges first{{0, 4}, {12, 4}}, second{{4, 4}, {8, 4}};
  EXPECT_EQ(format_blocks(nn::attention_blocks({{0, 10}}, {{0, 10}}, -1, 4)),
            "0+4 causal 0+4; 4+4 causal 4+4; 8+2 causal 8+2");
  EXPECT_EQ(format_blocks(nn::attention_blocks(first, second, -1, 4)), "");
  EXPECT_EQ(format_blocks(nn::attention_blocks(first, second, -1, 8)), "4+4 see 4+4");
  EXPECT_EQ(format_blocks(nn::attention_blocks({{9, 1}}, {{0, 10}}, -1, 4)), "0+1 see 8+1; 0+1 causal 9+1");
}

TEST(RowOrder, IsThatOfPositionsAndGoesBack) {
  const nn::RowOrder order({{8, 2}, {0, 3}, {3, 1}, {5, 2}});
  ASSERT_EQ(order.positions().size(), 3U) << "two runs touch";
  EXPECT_EQ(list_positions(order.positions()), (std::vector<int64_t>{0, 1, 2, 3, 5, 6, 8, 9}));
  const at::Tensor given = at::tensor({8, 9, 0, 1, 2, 3, 5, 6}, at::kLong);
  EXPECT_TRUE(order.sorted_order(given).equal(at::tensor({0, 1, 2, 3, 5, 6, 8, 9}, at::kLong)));
  EXPECT_TRUE(order.input_order(order.sorted_order(given)).equal(given));
  const at::Tensor second = given.expand({2, 8});
  EXPECT_TRUE(order.input_order(order.sorted_order(second, 1), 1).equal(second));
  const nn::RowOrder already({{1, 2}, {3, 4}});
  EXPECT_TRUE(already.sorted_order(given).is_alias_of(given)) << "nothing to copy";
}

}  // namespace
}  // namespace metroplex::test::attention_blocks_test

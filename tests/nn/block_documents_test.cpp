// Documents of attention blocks against the definition: which queries and keys of a block share a document, and the
// maximum number of documents.
#include "nn/block_documents.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace metroplex::test::block_documents_test {
namespace {

using Ranges = std::vector<nn::IndexRange>;

nn::Positions positions(const Ranges& ranges, int64_t whole) {
  std::vector<at::Tensor> rows;
  for (const nn::IndexRange& range : ranges)
    rows.push_back(at::arange(range.first, range.first + range.count, at::kLong));
  return {0, at::cat(rows), whole, ranges};
}

Ranges random_ranges(std::mt19937& random, int64_t whole) {
  Ranges ranges;
  for (int64_t first = 0; first < whole;) {
    const int64_t count = std::min<int64_t>(whole - first, 1 + static_cast<int64_t>(random() % 9));
    if (random() % 3 != 0) ranges.push_back({first, count});
    first += count + 1;
  }
  if (ranges.empty()) ranges.push_back({0, 1});
  return ranges;
}

// Documents of at least `least` tokens, except for the last of a sample, with at most `most` per sample.
nn::Microbatch packed(std::mt19937& random, int64_t samples, int64_t whole, int64_t least, int64_t most) {
  nn::Microbatch batch;
  std::vector<int64_t> ids;
  for (int64_t row = 0; row < samples; ++row) {
    int64_t document = 0, length = 0;
    for (int64_t i = 0; i < whole; ++i, ++length) {
      const bool ends = length >= least && random() % 4 == 0 && whole - i >= least;
      if (ends) ++document, length = 0;
      ids.push_back(document);
      if (i == 0 || ends) batch.documents.ranges.push_back({row * whole + i, 0});
      ++batch.documents.ranges.back().count;
    }
  }
  batch.documents.ids = at::tensor(ids, at::kLong).view({samples, whole});
  batch.documents.offsets = nn::document_offsets(batch.documents.ids, most);
  return batch;
}

// [b, queries, keys]: pairs in one document by the operator's arguments, without windows and causal masks.
at::Tensor together(const nn::BlockDocuments& documents, int64_t samples, int64_t queries, int64_t keys) {
  const auto number = [&](const at::Tensor& offsets, int64_t rows) {
    EXPECT_EQ(offsets.scalar_type(), at::kInt);
    EXPECT_EQ(offsets[0].item<int64_t>(), 0);
    EXPECT_EQ(offsets[-1].item<int64_t>(), samples * rows);
    EXPECT_FALSE(offsets.diff().lt(0).any().item<bool>());
    return at::searchsorted(offsets, at::arange(samples * rows, at::kInt), false, /*right=*/true);
  };
  EXPECT_EQ(documents.rows.queries.numel(), documents.rows.keys.numel());
  const at::Tensor query_ranges = number(documents.rows.queries, queries),
                   of_keys = number(documents.rows.keys, keys);
  const at::Tensor same = query_ranges.view({samples, queries, 1}).eq(of_keys.view({samples, 1, keys}));
  // No pair crosses two samples for any document offsets of the operator.
  const at::Tensor any = query_ranges.view({samples, queries, 1, 1}).eq(of_keys.view({1, 1, samples, keys}));
  for (int64_t i = 0; i < samples; ++i) {
    for (int64_t j = 0; j < samples; ++j) EXPECT_TRUE(i == j || !any[i].select(1, j).any().item<bool>());
  }
  return documents.hidden.defined() ? same.logical_and(documents.hidden.squeeze(1).unsqueeze(2).logical_not()) : same;
}

at::Tensor in_one_document(const nn::Microbatch& batch, const at::Tensor& queries, const at::Tensor& keys) {
  const at::Tensor query_ranges = batch.documents.ids.index_select(1, queries),
                   of_keys = batch.documents.ids.index_select(1, keys);
  return query_ranges.unsqueeze(2).eq(of_keys.unsqueeze(1));
}

TEST(BlockDocuments, AreTogetherWhereDocumentsSaySo) {
  std::mt19937 random(41);
  int across = 0, windows = 0, within = 0, fewer = 0;
  for (int round = 0; round < 300; ++round) {
    const auto whole = static_cast<int64_t>(2 + random() % 60), samples = static_cast<int64_t>(1 + random() % 3),
               least = static_cast<int64_t>(1 + random() % 12);
    const nn::Microbatch batch = packed(random, samples, whole, least, whole / least + 1);
    const Ranges query_ranges = random_ranges(random, whole),
                 of_keys = round % 2 == 0 ? query_ranges : random_ranges(random, whole);
    const nn::CorePositions ordered{positions(query_ranges, whole), positions(of_keys, whole)};
    const int64_t window = round % 3 == 0 ? static_cast<int64_t>(random() % 12) : -1;
    for (const nn::AttentionBlock& block : nn::attention_blocks(query_ranges, of_keys, window)) {
      const auto documents = nn::block_documents(batch, block, ordered);
      ASSERT_TRUE(documents.has_value());
      const at::Tensor queries = ordered.queries.rows.narrow(0, block.queries.first, block.queries.count),
                       keys = ordered.keys.rows.narrow(0, block.keys.first, block.keys.count);
      EXPECT_TRUE(
          together(*documents, samples, queries.numel(), keys.numel()).equal(in_one_document(batch, queries, keys)))
          << "round " << round << ": queries " << queries << " keys " << keys << batch.documents.ids;
      const int64_t capacity = documents->rows.queries.numel() - 1;
      if (block.causal) {
        ++within;
        fewer += capacity < batch.documents.offsets.numel() - 1 ? 1 : 0;
        EXPECT_EQ(capacity, nn::document_capacity(
                                batch, nn::narrow_ranges(query_ranges, block.queries.first, block.queries.count)));
      } else {
        ++(block.window >= 0 ? windows : across);
        EXPECT_EQ(capacity, (block.window >= 0 ? 2 : 3) * samples);
      }
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(across, 100);
  EXPECT_GT(windows, 50);
  EXPECT_GT(within, 100);
  EXPECT_GT(fewer, 50);
}

// Two samples of 4,096 tokens on four ranks, zigzag split: two ranges of 512.
const Ranges kZigzag{{512, 512}, {3072, 512}};

nn::Microbatch long_samples(int64_t most) {
  nn::Microbatch batch;
  batch.documents.ids = at::zeros({2, 4096}, at::kLong);
  batch.documents.offsets = at::zeros({2 * most + 1}, at::kLong);
  return batch;
}

TEST(BlockDocuments, HaveRoomForAnEvenShareAndForTheEnds) {
  const auto capacity = [&](int64_t most) { return nn::document_capacity(long_samples(most), kZigzag); };
  EXPECT_EQ(capacity(32), 2 * 2 * (4 + 1)) << "one for 128 tokens";
  EXPECT_EQ(capacity(11), 2 * 2 * (4 + 1)) << "the same";
  EXPECT_EQ(capacity(9), 2 * 9) << "at most the capacity of a sample";
  EXPECT_EQ(capacity(64), 2 * 2 * (8 + 1)) << "one for 64 tokens";
  EXPECT_EQ(capacity(60), 2 * 2 * (8 + 1)) << "one for 68 tokens, of which 512 have parts of eight and one more";
  EXPECT_EQ(capacity(5000), 2 * 2 * (512 + 1)) << "never fewer tokens than one";
}

// A range of 512 has three full documents of 128 tokens and parts of at most two others. With one document more our
// kernels run instead, unless the documents were not counted.
TEST(BlockDocuments, AreNotForABlockWithMoreThanItsRoom) {
  const nn::Positions rows = positions(kZigzag, 4096);
  const auto room_of = [&](const std::vector<int64_t>& begins, bool counted) {
    nn::Microbatch batch = long_samples(32);
    std::vector<int64_t> offsets;
    for (int64_t sample = 0; sample < 2; ++sample) {
      for (size_t i = 0; i < begins.size(); ++i) {
        const int64_t end = i + 1 < begins.size() ? begins[i + 1] : 4096;
        offsets.push_back(sample * 4096 + begins[i]);
        if (counted) batch.documents.ranges.push_back({offsets.back(), end - begins[i]});
      }
    }
    offsets.resize(2 * 32 + 1, 2 * 4096);
    batch.documents.offsets = at::tensor(offsets, at::kLong);
    const auto documents = nn::block_documents(batch, {{0, 1024}, {0, 1024}, true}, {rows, rows});
    return documents ? documents->rows.queries.numel() - 1 : -1;
  };
  std::vector<int64_t> begins{0};
  for (int64_t first = 193; first < 4096; first += 128) begins.push_back(first);
  ASSERT_EQ(begins.size(), 32U);
  EXPECT_EQ(room_of(begins, true), 20);
  begins.erase(begins.begin() + 1);  // outside
  begins.insert(std::find(begins.begin(), begins.end(), 705), 641);
  EXPECT_EQ(room_of(begins, true), -1);
  EXPECT_EQ(room_of(begins, false), 64);
}

}  // namespace
}  // namespace metroplex::test::block_documents_test

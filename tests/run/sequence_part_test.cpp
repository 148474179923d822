// A context-parallel rank's region of a microbatch against the definition: its rows, and the keys that are exchanged.
#include "step/sequence_part.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <random>
#include <set>

#include "step/batch.h"

namespace metroplex::test::sequence_part_test {
namespace {

using config::SequenceCutKind;

nn::Microbatch whole_batch(std::mt19937& random, int64_t length, int64_t samples = 2) {
  step::HostBatch host;
  host.numbers = {0, 1, 0};
  host.vocab_size = 1000;
  for (int64_t s = 0; s < samples; ++s) {
    data::Sample sample;
    int64_t document = 0;
    for (int64_t i = 0; i < length; ++i) {
      if (random() % 7 == 0) ++document;
      sample.tokens.push_back(i);
      sample.labels.push_back(i + 1);
      sample.position_ids.push_back(i);
      sample.document_ids.push_back(document);
      sample.loss_mask.push_back(1);
    }
    host.samples.push_back(std::move(sample));
  }
  return step::stack_samples(host, at::kFloat);
}

std::set<int64_t> to_positions(const at::Tensor& rows, const std::vector<nn::IndexRange>& runs) {
  std::set<int64_t> all;
  for (const nn::IndexRange& run : runs) {
    for (int64_t i = run.first; i < run.first + run.count; ++i) all.insert(rows[i].item<int64_t>());
  }
  return all;
}

// Positions of `owner` that a query of `reader` attends to in some sample.
std::set<int64_t> seen(const nn::Microbatch& whole, const at::Tensor& readers, const at::Tensor& owners) {
  const auto ids = whole.documents.ids.accessor<int64_t, 2>();
  const auto of_reader = readers.accessor<int64_t, 1>(), of_owner = owners.accessor<int64_t, 1>();
  std::set<int64_t> all;
  for (int64_t i = 0; i < readers.size(0); ++i) {
    for (int64_t j = 0; j < owners.size(0); ++j) {
      const int64_t query = of_reader[i], key = of_owner[j];
      bool one = false;
      for (int64_t s = 0; s < ids.size(0); ++s) one = one || ids[s][key] == ids[s][query];
      if (one && key <= query) all.insert(key);
    }
  }
  return all;
}

at::Tensor rank_rows_tensor(const nn::Microbatch& part, int rank) {
  if (part.sequence.rank_rows.empty()) return part.sequence.all_rows[rank];
  const nn::IndexRange& run = part.sequence.rank_rows[static_cast<size_t>(rank)];
  return part.sequence.all_rows.narrow(0, run.first, run.count);
}

TEST(SequencePart, KeysThatTravelAreThoseThatAreSeen) {
  std::mt19937 random(5);
  int uneven = 0;
  for (int round = 0; round < 40; ++round) {
    const int cp = 2 + static_cast<int>(random() % 3);
    const nn::Microbatch whole =
        whole_batch(random, cp * 2 * (1 + static_cast<int64_t>(random() % 6)), 1 + round % 2);
    for (const SequenceCutKind kind :
         {SequenceCutKind::zigzag, SequenceCutKind::contiguous, SequenceCutKind::balanced}) {
      const double slack = kind == SequenceCutKind::balanced && round % 4 < 2 ? 0.4 : 0;
      SCOPED_TRACE(testing::Message() << config::text_of(kind) << " cp " << cp << " round " << round);
      for (int rank = 0; rank < cp; ++rank) {
        const nn::Microbatch part =
            step::shard_sequence(whole, {cp, rank, kind, 1, 1, slack, slack > 0 ? 0.5 : 0.02});
        ASSERT_EQ(part.sequence.keys.sent.size(), static_cast<size_t>(cp));
        EXPECT_TRUE(at::equal(part.tokens[0], part.sequence.rows)) << "the tokens of whole_batch are their positions";
        for (int other = 0; other < cp; ++other) {
          const at::Tensor mine = part.sequence.rows, theirs = rank_rows_tensor(part, other);
          uneven += mine.size(0) == theirs.size(0) ? 0 : 1;
          const auto &sent = part.sequence.keys.sent[static_cast<size_t>(other)],
                     &received = part.sequence.keys.received[static_cast<size_t>(other)];
          const std::set<int64_t> none;
          EXPECT_EQ(to_positions(mine, sent), other == rank ? none : seen(whole, theirs, mine));
          EXPECT_EQ(to_positions(theirs, received), other == rank ? none : seen(whole, mine, theirs));
        }
      }
    }
  }
  EXPECT_GT(uneven, 5) << "with a slack ranks have different numbers of rows";
}

// Groups of two neighbors: concatenated rows.
TEST(SequencePart, KeysOfGroupsAreThoseThatAnyRankOfThemSees) {
  std::mt19937 random(6);
  for (int round = 0; round < 40; ++round) {
    const nn::Microbatch whole = whole_batch(random, 8 * (1 + static_cast<int64_t>(random() % 6)));
    for (const SequenceCutKind kind : {SequenceCutKind::zigzag, SequenceCutKind::balanced}) {
      for (int rank = 0; rank < 4; ++rank) {
        const nn::Microbatch part = step::shard_sequence(whole, {4, rank, kind, 1, 2});
        ASSERT_EQ(part.sequence.group_keys.sent.size(), 2U);
        const int mine = rank / 2, other = 1 - mine;
        const at::Tensor groups = part.sequence.all_rows.view({2, -1});
        EXPECT_EQ(to_positions(groups[mine], part.sequence.group_keys.sent[static_cast<size_t>(other)]),
                  seen(whole, groups[other], groups[mine]));
        EXPECT_EQ(to_positions(groups[other], part.sequence.group_keys.received[static_cast<size_t>(other)]),
                  seen(whole, groups[mine], groups[other]));
        EXPECT_TRUE(part.sequence.group_keys.sent[static_cast<size_t>(mine)].empty());
      }
    }
  }
}

// For the host, whose attention may use blocks given by offsets.
TEST(SequencePart, DocumentsAreThoseOfTheOffsets) {
  std::mt19937 random(7);
  nn::Microbatch whole = whole_batch(random, 24);
  const auto part = [&] { return step::shard_sequence(whole, {4, 1, SequenceCutKind::zigzag, 1}); };
  EXPECT_TRUE(part().documents.ranges.empty()) << "no offsets";
  whole.documents.offsets = nn::document_offsets(whole.documents.ids, 24);
  const std::vector<nn::IndexRange> runs = part().documents.ranges;
  ASSERT_GT(runs.size(), 4U);
  for (size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i].first, whole.documents.offsets[static_cast<int64_t>(i)].item<int64_t>());
    EXPECT_EQ(runs[i].first + runs[i].count, whole.documents.offsets[static_cast<int64_t>(i) + 1].item<int64_t>());
  }
  EXPECT_EQ(runs.back().first + runs.back().count, 48);
  step::SequenceSharding whole_sequences{4, 1, SequenceCutKind::zigzag, 1};
  whole_sequences.lists = false;
  EXPECT_TRUE(step::shard_sequence(whole, whole_sequences).documents.ranges.empty());
}

TEST(SequencePart, WithoutDocumentsAllKeysTravel) {
  std::mt19937 random(5);
  nn::Microbatch whole = whole_batch(random, 16);
  whole.documents.ids = at::Tensor();
  EXPECT_TRUE(step::shard_sequence(whole, {4, 1, SequenceCutKind::zigzag, 1}).sequence.keys.sent.empty());
}

}  // namespace
}  // namespace metroplex::test::sequence_part_test

// The path from samples to the microbatch of every tensor-parallel rank.
#include "step/batch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/backends/counting.h"
#include "data/loader.h"
#include "nn/random_site.h"
#include "support/error_of.h"
#include "support/run_ranks.h"

namespace metroplex::test::batch_ranks_test {
namespace {

constexpr int64_t kLength = 5, kVocabulary = 2000, kStep = 9;

data::Sample sample_number(int64_t n, bool documents) {
  data::Sample sample;
  for (int64_t t = 0; t < kLength; ++t) {
    sample.tokens.push_back(100 * n + t);
    sample.labels.push_back(100 * n + t + 1);
    sample.position_ids.push_back(t % 3);
    sample.loss_mask.push_back(t == n % kLength ? 0.0F : 1.0F);
    if (documents) sample.document_ids.push_back(static_cast<int32_t>(t / 3));
  }
  sample.index = n;
  return sample;
}

class Numbers final : public data::Dataset {
 public:
  Numbers(int64_t size, bool documents) : size_(size), documents_(documents) {}
  int64_t size() const override { return size_; }
  void get(int64_t index, data::Sample& out) const override {
    MPX_CHECK(index != 13, "data", "sample 13 is unlucky");
    out = sample_number(index, documents_);
  }

 private:
  int64_t size_;
  bool documents_;
};

step::HostBatch host_batch(int64_t first, int64_t count, bool documents) {
  step::HostBatch batch;
  batch.numbers = {first, 1, kStep};
  batch.vocab_size = kVocabulary;
  for (int64_t n = first; n < first + count; ++n) batch.samples.push_back(sample_number(n, documents));
  return batch;
}

void expect_samples(const nn::Microbatch& batch, int64_t first, int64_t count, bool documents) {
  ASSERT_EQ(batch.tokens.sizes().vec(), (std::vector<int64_t>{count, kLength}));
  for (int64_t row = 0; row < count; ++row) {
    const data::Sample want = sample_number(first + row, documents);
    EXPECT_EQ(static_cast<uint64_t>(batch.counters.samples[row].item<int64_t>()),
              nn::mix(kStep) + static_cast<uint64_t>(first + row));
    for (int64_t t = 0; t < kLength; ++t) {
      const auto i = static_cast<size_t>(t);
      EXPECT_EQ(batch.tokens[row][t].item<int64_t>(), want.tokens[i]);
      EXPECT_EQ(batch.labels[row][t].item<int64_t>(), want.labels[i]);
      EXPECT_EQ(batch.position_ids[row][t].item<int64_t>(), want.position_ids[i]);
      EXPECT_EQ(batch.loss_mask[row][t].item<double>(), want.loss_mask[i]);
      if (documents) { EXPECT_EQ(batch.documents.ids[row][t].item<int64_t>(), want.document_ids[i]); }
    }
  }
  EXPECT_EQ(batch.documents.ids.defined(), documents);
  EXPECT_EQ(batch.mask_sum, batch.loss_mask.sum().item<double>());
  EXPECT_EQ(batch.counters.step.item<int64_t>(), kStep);
  EXPECT_EQ(batch.counters.samples.storage().nbytes(), batch.counters.samples.nbytes() + batch.counters.step.nbytes())
      << "dropout keeps it";
}

TEST(StackSamples, EverySampleIsARowWithItsGlobalNumber) {
  for (const bool documents : {false, true})
    expect_samples(step::stack_samples(host_batch(7, 3, documents), at::kFloat), 7, 3, documents);
}

TEST(StackSamples, TheMaskHasTheTypeAskedFor) {
  EXPECT_EQ(step::stack_samples(host_batch(0, 1, false), at::kFloat).loss_mask.scalar_type(), at::kFloat);
  EXPECT_EQ(step::stack_samples(host_batch(0, 1, false), at::kDouble).loss_mask.scalar_type(), at::kDouble);
}

TEST(StackSamples, SamplesOfDifferentLengthAreNoBatch) {
  step::HostBatch batch = host_batch(0, 2, false);
  batch.samples[1].tokens.pop_back();
  EXPECT_THROW(step::stack_samples(batch, at::kFloat), std::logic_error);
}

TEST(StackSamples, SamplesWithoutAStepAreNoBatch) {
  step::HostBatch batch = host_batch(0, 2, false);
  batch.numbers = step::SampleNumbers{.first = 4};
  EXPECT_THROW(step::stack_samples(batch, at::kFloat), std::logic_error);
}

// Layers treat ids outside the vocabulary as rows of zeros, so stack_samples must report them.
TEST(StackSamples, ATokenOrLabelOutsideTheVocabularyIsAnErrorWithItsSample) {
  const auto message_of = [](const std::function<void(step::HostBatch&)>& change) {
    step::HostBatch batch = host_batch(7, 3, false);
    batch.numbers.stride = 2;
    change(batch);
    try {
      step::stack_samples(batch, at::kFloat);
    } catch (const base::Error& error) { return std::string(error.what()); }
    return std::string("no error");
  };
  EXPECT_EQ(message_of([](step::HostBatch&) {}), "no error");
  EXPECT_EQ(message_of([](step::HostBatch& batch) { batch.samples[2].tokens[3] = kVocabulary; }),
            "[data] token 3 of sample 11 is 2000, outside the vocabulary of 2000; the data set was made with another "
            "tokenizer");
  EXPECT_EQ(message_of([](step::HostBatch& batch) { batch.samples[0].labels[0] = -1; }),
            "[data] label 0 of sample 7 is -1, outside the vocabulary of 2000; the data set was made with another "
            "tokenizer");
}

// kLength / 3 documents per sample, rounded up.
TEST(StackSamples, OffsetsOfDocumentsAreMadeWhereThereIsRoomOrRefused) {
  const int64_t each = (kLength + 2) / 3;
  step::HostBatch batch = host_batch(7, 2, true);
  EXPECT_FALSE(step::stack_samples(batch, at::kFloat).documents.offsets.defined());
  batch.documents = {each + 1, true};
  const nn::Microbatch roomy = step::stack_samples(batch, at::kFloat);
  ASSERT_EQ(roomy.documents.offsets.numel(), 2 * (each + 1) + 1);
  for (int64_t i = 0; i < roomy.documents.offsets.numel(); ++i) {
    const int64_t wanted = i < 2 * each ? i / each * kLength + i % each * 3 : 2 * kLength;
    EXPECT_EQ(roomy.documents.offsets[i].item<int64_t>(), wanted) << i;
  }
  batch.documents = {each - 1, false};
  EXPECT_FALSE(step::stack_samples(batch, at::kFloat).documents.offsets.defined());
  batch.documents.must_fit = true;
  const std::string said = catch_error([&] { step::stack_samples(batch, at::kFloat); });
  EXPECT_NE(said.find("the samples from 7 on"), std::string::npos) << said;
  EXPECT_NE(said.find("raise data.max_documents_per_sample"), std::string::npos) << said;
  batch = host_batch(7, 2, false);
  batch.documents = {1, true};
  EXPECT_FALSE(step::stack_samples(batch, at::kFloat).documents.offsets.defined()) << "attention over all documents";
}

// Batches of several sizes, with and without documents, and partly filled.
TEST(BroadcastBatches, EveryRankGetsWhatTheFirstOneRead) {
  run_ranks(4, {.tp = 4}, [&](const comm::World& world) {
    std::vector<nn::Microbatch> mine;
    if (world.rank() == 0) {
      mine.push_back(step::stack_samples(host_batch(3, 2, false), at::kDouble));
      step::HostBatch documents = host_batch(5, 3, true);
      documents.documents.per_sample = kLength;
      mine.push_back(step::stack_samples(documents, at::kDouble));
    }
    const auto batches = step::broadcast_batches(mine, 3, world.groups().batch, at::kDouble);
    ASSERT_EQ(batches.size(), 2U);
    expect_samples(batches[0], 3, 2, false);
    expect_samples(batches[1], 5, 3, true);
    EXPECT_FALSE(batches[0].documents.offsets.defined());
    ASSERT_TRUE(batches[1].documents.offsets.defined());
    EXPECT_TRUE(batches[1].documents.offsets.equal(nn::document_offsets(batches[1].documents.ids, kLength)));
  });
}

// A region of a longer sequence: the local rows, for the device and for the host.
TEST(BroadcastBatches, EveryTensorArrivesAndSoDoTheRowsOfASequence) {
  run_ranks(2, {.tp = 2}, [&](const comm::World& world) {
    step::HostBatch of_documents = host_batch(3, 2, true);
    of_documents.documents.per_sample = kLength;
    nn::Microbatch part = step::stack_samples(of_documents, at::kDouble);
    part.sequence.rows = at::tensor({0, 1, 7, 8, 9}, at::kLong);
    part.sequence.all_rows = at::stack({part.sequence.rows, at::tensor({2, 3, 4, 5, 6}, at::kLong)});
    part.sequence.row_ranges = {{0, 2}, {7, 3}};
    part.sequence.length = 10;
    part.sequence.rank_rows = {{0, 5}, {5, 4}};
    part.documents.ranges = {{0, 4}, {4, 6}};
    part.sequence.keys.sent = {{}, {{1, 2}, {4, 1}}};
    part.sequence.keys.received = {{}, {{0, 3}}};
    part.sequence.group_keys.sent = {{{5, 6}}};
    part.sequence.group_keys.received = {{{7, 8}, {9, 10}}};
    std::vector<nn::Microbatch> mine;
    if (world.rank() == 0) mine = {step::stack_samples(host_batch(5, 3, false), at::kDouble), part};
    const auto batches = step::broadcast_batches(mine, 2, world.groups().batch, at::kDouble);
    ASSERT_EQ(batches.size(), 2U);
    EXPECT_TRUE(batches[0].sequence.row_ranges.empty());
    EXPECT_FALSE(batches[0].sequence.rows.defined());
    for (const auto& [name, tensor] : nn::kMicrobatchTensors) {
      ASSERT_TRUE(tensor(batches[1]).defined()) << name;
      EXPECT_TRUE(at::equal(tensor(batches[1]), tensor(part))) << name;
    }
    ASSERT_EQ(batches[1].sequence.row_ranges.size(), 2U);
    EXPECT_EQ(batches[1].sequence.row_ranges[1].first, 7);
    EXPECT_EQ(batches[1].sequence.row_ranges[1].count, 3);
    EXPECT_EQ(batches[1].sequence.length, 10);
    ASSERT_EQ(batches[1].sequence.rank_rows.size(), 2U);
    EXPECT_EQ(batches[1].sequence.rank_rows[1].first, 5);
    EXPECT_EQ(batches[1].sequence.rank_rows[1].count, 4);
    EXPECT_TRUE(batches[0].sequence.rank_rows.empty());
    EXPECT_TRUE(batches[0].documents.ranges.empty());
    ASSERT_EQ(batches[1].documents.ranges.size(), 2U);
    EXPECT_EQ(batches[1].documents.ranges[1].first, 4);
    EXPECT_EQ(batches[1].documents.ranges[1].count, 6);
    EXPECT_TRUE(batches[0].sequence.keys.sent.empty() && batches[0].sequence.keys.received.empty());
    const nn::KeyExchange& keys = batches[1].sequence.keys;
    ASSERT_EQ(keys.sent.size(), 2U);
    ASSERT_EQ(keys.received.size(), 2U);
    EXPECT_TRUE(keys.sent[0].empty() && keys.received[0].empty());
    ASSERT_EQ(keys.sent[1].size(), 2U);
    EXPECT_EQ(keys.sent[1][1].first, 4);
    EXPECT_EQ(keys.sent[1][1].count, 1);
    ASSERT_EQ(keys.received[1].size(), 1U);
    EXPECT_EQ(keys.received[1][0].count, 3);
    const nn::KeyExchange& of_groups = batches[1].sequence.group_keys;
    ASSERT_EQ(of_groups.sent.size(), 1U);
    ASSERT_EQ(of_groups.received.size(), 1U);
    EXPECT_EQ(of_groups.sent[0][0].first, 5);
    EXPECT_EQ(of_groups.received[0][1].count, 10);
  });
}

TEST(BatchBytes, CountsEveryTensor) {
  nn::Microbatch batch = step::stack_samples(host_batch(3, 2, true), at::kDouble);
  batch.sequence.rows = at::arange(kLength, at::kLong);
  EXPECT_EQ(step::batch_bytes(batch), 5 * 2 * kLength * 8 + (2 + 1) * 8 + kLength * 8);
}

TEST(BroadcastBatches, NothingIsBroadcastAsNothing) {
  run_ranks(2, {.tp = 2}, [&](const comm::World& world) {
    EXPECT_TRUE(step::broadcast_batches({}, 2, world.groups().batch, at::kFloat).empty());
  });
}

// One message between hosts per step, two between devices per microbatch.
TEST(BroadcastBatches, ShapesTravelOnceAStep) {
  const auto traffic = std::make_shared<comm::Traffic>();
  comm::ThreadsOptions options;
  options.traffic = traffic;
  comm::run_threads(2, make_grid(2, {.tp = 2}), options, [&](const comm::World& world) {
    std::vector<nn::Microbatch> mine;
    for (int64_t m = 0; world.rank() == 0 && m < 4; ++m)
      mine.push_back(step::stack_samples(host_batch(3, 2, false), at::kDouble));
    EXPECT_EQ(step::broadcast_batches(mine, 4, world.groups().batch, at::kDouble).size(), 4U);
  });
  EXPECT_EQ(traffic->of("batch", "broadcast").calls, 2 * (1 + 2 * 4)) << "of both ranks";
}

// Two data-parallel ranks of two tensor-parallel ranks each read 11 samples in microbatches of 2: two full batches of
// four.
TEST(BatchStream, ReadsOnOneRankOfAGroupUntilTheDataEnds) {
  const auto dataset = std::make_shared<Numbers>(11, true);
  run_ranks(4, {.tp = 2, .dp = 2}, [&](const comm::World& world) {
    const int64_t dp_index = world.groups().dp.index();
    std::unique_ptr<data::Loader> loader;
    if (world.groups().batch.first()) {
      data::SamplerOptions options;
      options.micro_batch_size = 2;
      options.dp_index = dp_index;
      options.dp_size = 2;
      loader = std::make_unique<data::Loader>(dataset, options, 2);
    }
    step::BatchStream stream(std::move(loader), world.groups().batch, {kVocabulary, at::kDouble});
    const auto numbers = [&](int64_t step) { return step::SampleNumbers{4 * step + 2 * dp_index, 1, kStep}; };
    const auto first = stream.next({numbers(0)});
    ASSERT_EQ(first.size(), 1U);
    expect_samples(first[0], numbers(0).first, 2, true);
    const auto rest = stream.next({numbers(1), numbers(2)});
    ASSERT_EQ(rest.size(), 1U) << "the data ends within a step";
    expect_samples(rest[0], numbers(1).first, 2, true);
    EXPECT_TRUE(stream.next({numbers(2)}).empty());
  });
}

TEST(BatchStream, ASampleThatCannotBeReadEndsAllRanksWithItsCause) {
  const auto dataset = std::make_shared<Numbers>(20, false);
  std::string message;
  try {
    comm::run_threads(2, make_grid(2, {.tp = 2}), {}, [&](const comm::World& world) {
      data::SamplerOptions options;
      options.consumed_samples = 12;
      step::BatchStream stream(world.rank() == 0 ? std::make_unique<data::Loader>(dataset, options, 2) : nullptr,
                               world.groups().batch, {kVocabulary});
      EXPECT_EQ(stream.next({{12, 1, kStep}}).size(), 1U);
      stream.next({{13, 1, kStep}});
    });
  } catch (const base::Error& error) { message = error.what(); }
  EXPECT_NE(message.find("sample 13 is unlucky"), std::string::npos) << message;
  EXPECT_NE(message.find("rank 0"), std::string::npos) << message;
}

}  // namespace
}  // namespace metroplex::test::batch_ranks_test

#include "data/gpt_dataset.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/scratch.h"

namespace metroplex::data::gpt_dataset_test {
namespace {

std::shared_ptr<const TokenSource> make_source(const Scratch& scratch, const std::vector<int64_t>& lengths) {
  write_corpus(scratch / "set", lengths);
  files::PosixFileSystem disk;
  return std::make_shared<IndexedSource>(disk, scratch / "set");
}

GptDataset make_dataset(const std::shared_ptr<const TokenSource>& source, const GptOptions& options) {
  files::PosixFileSystem disk;
  std::vector<int32_t> documents(static_cast<size_t>(source->num_sequences()));
  std::iota(documents.begin(), documents.end(), 0);
  return {source, documents, options, IndexCache(disk, "")};
}

GptOptions make_options(int64_t sequence_length, int64_t samples) {
  GptOptions options;
  options.index.sequence_length = sequence_length;
  options.index.num_samples = samples;
  options.eod = 0;
  return options;
}

TEST(GptDataset, GivesEveryTokenOfAnEpochOnceButForTheRest) {
  const Scratch scratch;
  const auto source = make_source(scratch, {5, 9, 30, 1, 2, 14, 40});
  const auto dataset = make_dataset(source, make_options(4, -1));
  std::map<int64_t, int> seen;
  Sample sample;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    dataset.get(i, sample);
    for (size_t j = 0; j < 4; ++j) {
      if (sample.tokens[j] != 0) ++seen[sample.tokens[j]];
      EXPECT_TRUE(j == 0 || sample.labels[j - 1] == sample.tokens[j]);
    }
  }
  EXPECT_EQ(dataset.size(), (101 - 1) / 4);
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](const auto& entry) { return entry.second == 1; }));
  EXPECT_GE(seen.size(), 101u - 7u - 4u);
}

TEST(GptDataset, RepeatsATinyCorpusUntilThereAreEnoughSamples) {
  const Scratch scratch;
  const auto dataset = make_dataset(make_source(scratch, {2}), make_options(8, 50));
  EXPECT_GE(dataset.size(), 50);
  Sample sample;
  dataset.get(49, sample);
  EXPECT_EQ(sample.tokens, (std::vector<int64_t>{100, 0, 100, 0, 100, 0, 100, 0}));
}

TEST(GptDataset, GivesFillerSamplesWithoutLoss) {
  const Scratch scratch;
  const auto dataset = make_dataset(make_source(scratch, {50}), make_options(8, -1));
  Sample sample;
  dataset.get(-1, sample);
  EXPECT_EQ(sample.index, -1);
  EXPECT_EQ(sample.tokens.size(), 8u);
  EXPECT_EQ(sample.loss_mask, std::vector<float>(8, 0.0f));
}

TEST(GptDataset, RestartsPositionsAndDocumentsBehindEveryEod) {
  GptOptions options = make_options(7, -1);
  options.reset_position_ids = options.reset_attention_mask = options.eod_mask_loss = true;
  Sample sample;
  sample.tokens = {0, 3, 4, 0, 0, 5, 0};
  fill_masks(options, sample);
  EXPECT_EQ(sample.position_ids, (std::vector<int64_t>{0, 0, 1, 2, 0, 0, 1}));
  EXPECT_EQ(sample.document_ids, (std::vector<int32_t>{0, 1, 1, 1, 2, 3, 3}));
  EXPECT_EQ(sample.loss_mask, (std::vector<float>{0, 1, 1, 0, 0, 1, 0}));
}

TEST(GptDataset, HasNoDocumentNumbersUnlessTheyAreAskedFor) {
  GptOptions options = make_options(3, -1);
  Sample sample;
  sample.tokens = {1, 0, 2};
  fill_masks(options, sample);
  EXPECT_TRUE(sample.document_ids.empty());
  EXPECT_EQ(sample.position_ids, (std::vector<int64_t>{0, 1, 2}));
}

TEST(GptDataset, MasksThePaddingOfAPartialSample) {
  const Scratch scratch;
  GptOptions options = make_options(8, -1);
  options.index.drop_last_partial = false;
  const auto dataset = make_dataset(make_source(scratch, {12}), options);
  ASSERT_EQ(dataset.size(), 2);
  const int64_t partial = dataset.shuffle_index()[0] == 1 ? 0 : 1;
  Sample sample;
  dataset.get(partial, sample);  // tokens 108, 109, 110, 0 remain: three of them have a label
  EXPECT_EQ(sample.loss_mask, (std::vector<float>{1, 1, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(sample.tokens, (std::vector<int64_t>{108, 109, 110, 0, 0, 0, 0, 0}));
}

TEST(GptDataset, RefusesResetsWithoutAnEod) {
  const Scratch scratch;
  const auto source = make_source(scratch, {20});
  GptOptions options = make_options(4, -1);
  options.eod = -1;
  options.eod_mask_loss = true;
  EXPECT_THROW(make_dataset(source, options), base::Error);
}

TEST(GptDataset, RefusesTokensOutsideTheVocabulary) {
  const Scratch scratch;
  GptOptions options = make_options(4, -1);
  options.vocab_size = 104;
  const auto dataset = make_dataset(make_source(scratch, {4, 20}), options);
  Sample sample;
  EXPECT_THROW(for (int64_t i = 0; i < dataset.size(); ++i) dataset.get(i, sample), base::Error);
}

// A dataset never reads another one's cache.
TEST(GptDataset, TakesFromTheCacheOnlyItsOwnOrder) {
  const Scratch scratch;
  const auto source = make_source(scratch, {5, 9, 30, 1, 2, 14, 40});
  files::PosixFileSystem disk;
  const std::vector<int32_t> documents{0, 1, 2, 3, 4, 5, 6};
  const auto order = [&](const GptOptions& options, const std::string& folder) {
    const GptDataset dataset(source, documents, options, IndexCache(disk, folder));
    return std::pair(std::vector<int64_t>(dataset.shuffle_index().begin(), dataset.shuffle_index().end()),
                     std::vector<int64_t>(dataset.sample_index().begin(), dataset.sample_index().end()));
  };
  const GptOptions first = make_options(4, 60);
  GptOptions seed = first, length = first, samples = first;
  seed.index.seed = first.index.seed + 1;
  length.index.sequence_length = 5;
  samples.index.num_samples = 70;
  const auto kept = order(first, scratch / "cache");
  for (const GptOptions& other : {seed, length, samples}) {
    EXPECT_NE(order(other, ""), kept);
    EXPECT_EQ(order(other, scratch / "cache"), order(other, ""));
  }
  EXPECT_EQ(order(first, scratch / "cache"), kept);
}

TEST(GptIndex, ShufflesAThinLastEpochApart) {
  const std::vector<int32_t> lengths(10, 10), documents{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  GptIndexOptions options;
  options.sequence_length = 10;
  options.num_samples = 11;  // 9 of the first epoch, 2 of the second
  const GptIndex thin = build_gpt_index(lengths, documents, options);
  EXPECT_EQ(thin.num_epochs, 2);
  EXPECT_TRUE(thin.separate_final_epoch);
  const auto first = std::span(thin.shuffle_index).first(9);
  EXPECT_LT(*std::max_element(first.begin(), first.end()), 9);
  options.num_samples = 17;
  EXPECT_FALSE(build_gpt_index(lengths, documents, options).separate_final_epoch);
}

TEST(GptIndex, WhatItTakesIsKnownBeforehand) {
  const std::vector<int32_t> lengths{10, 7, 30, 1}, documents{0, 1, 2, 3};
  for (const int64_t samples : {-1, 3, 5, 6, 12, 40, 1000}) {  // 6: an epoch, except for the last label
    GptIndexOptions options;
    options.sequence_length = 8;
    options.num_samples = samples;
    const GptIndex index = build_gpt_index(lengths, documents, options);
    const IndexNeed need = index_need(4, 48, options);
    EXPECT_EQ(need.epochs, static_cast<double>(index.num_epochs)) << samples;
    EXPECT_NEAR(need.samples, static_cast<double>(index.shuffle_index.size()), 1) << samples;
    const size_t bytes =
        4 * index.document_index.size() + 8 * index.sample_index.size() + 8 * index.shuffle_index.size();
    EXPECT_NEAR(need.bytes, static_cast<double>(bytes + 16 * index.shuffle_index.size()), 80) << samples;
  }
}

TEST(GptDataset, RefusesAtOnceMoreSamplesThanTheMemoryHasRoomToOrder) {
  const Scratch scratch;
  const auto source = make_source(scratch, {5, 9, 30});
  for (const int64_t samples : {int64_t{1} << 42, int64_t{1} << 62}) {
    try {
      make_dataset(source, make_options(4, samples));
      ADD_FAILURE() << samples << " samples were accepted";
    } catch (const base::Error& error) {
      for (const char* word : {"[config] split train of", "bytes of memory", "are free", "train.train_iters"})
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

TEST(GptIndex, RefusesDocumentsWithoutTokens) {
  const std::vector<int32_t> lengths(3, 0), documents{0, 1, 2};
  GptIndexOptions options;
  options.sequence_length = 4;
  EXPECT_THROW(build_gpt_index(lengths, documents, options), base::Error);
}

}  // namespace
}  // namespace metroplex::data::gpt_dataset_test

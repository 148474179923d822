// Tokens of the training split, counted from index files only.

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "data/build.h"
#include "data/scratch.h"
#include "files/file_system.h"
#include "support/error_of.h"

namespace metroplex::data::token_count_test {
namespace {

Splits build_datasets(const config::Data& config, const BuildOptions& options) {
  files::PosixFileSystem disk;
  return data::build_datasets(config, options, disk);
}

class TokenCount : public ::testing::Test {
 protected:
  void SetUp() override {
    write_corpus(scratch / "a", std::vector<int64_t>(50, 20));
    write_corpus(scratch / "b", std::vector<int64_t>(30, 40));
  }
  std::vector<SourceTokens> found() { return training_tokens(config, disk); }

  Scratch scratch;
  files::PosixFileSystem disk;
  config::Data config;
};

TEST_F(TokenCount, IsThatOfTheSplitAndWritesNothing) {
  config.data_path = {scratch / "a"};
  config.split = "8,1,1";
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(found()[0].documents, 40);
  EXPECT_EQ(found()[0].tokens, 800);
  EXPECT_EQ(found()[0].share, 1);
  EXPECT_FALSE(std::filesystem::exists(scratch / "cache"));
  config.data_path = {};
  config.train_data_path = {scratch / "a"};
  EXPECT_EQ(found()[0].tokens, 1000) << "a path of the training split's own is all of it";
}

TEST_F(TokenCount, SharesAreWeightsOrFollowTheTokens) {
  config.split = "1";
  config.data_path = {"3", scratch / "a", "1", scratch / "b"};
  EXPECT_EQ(found()[0].share, 0.75);
  EXPECT_EQ(found()[1].share, 0.25);
  EXPECT_EQ(found()[1].tokens, 1200);
  config.data_path = {scratch / "a", scratch / "b"};
  EXPECT_EQ(found()[0].share, 1000.0 / 2200);
}

TEST_F(TokenCount, WhatIsMissingOrDamagedIsTold) {
  config.split = "1";
  config.data_path = {"1", scratch / "a", "1", scratch / "nowhere"};
  EXPECT_EQ(found()[0].problem, "");
  EXPECT_NE(found()[1].problem.find("nowhere.idx"), std::string::npos);
  scratch.write("a.idx", "damaged");
  EXPECT_NE(found()[0].problem.find("a.idx"), std::string::npos);
  config.data_path = {"1", scratch / "a", "x", scratch / "b"};
  EXPECT_THROW(found(), base::Error) << "the key itself is wrong";
}

// The dataset's index needs one epoch for the samples of one.
TEST_F(TokenCount, SamplesOfEpochsReadNoSourceMoreOften) {
  config.split = "1";
  config.data_path = {scratch / "a"};
  const TokenCountOptions counting{.sequence_length = 10};
  for (const auto& [epochs, samples] : {std::pair<double, int64_t>{1, 99}, {2, 199}, {0.5, 49}}) {
    EXPECT_EQ(samples_of_epochs(config, disk, epochs, counting), samples);
    const auto splits =
        build_datasets(config, {.sequence_length = 10, .sizes = {samples, 0, 0}, .eod = 7, .vocab_size = 0});
    EXPECT_TRUE(splits.train_order.epochs.starts_with(epochs > 1 ? "2" : "1")) << splits.train_order.epochs;
  }
  config.data_path = {"3", scratch / "a", "1", scratch / "b"};
  EXPECT_EQ(samples_of_epochs(config, disk, 1, counting), 133) << "99.9 / 0.75, of the first source";
  config.data_path = {scratch / "a", scratch / "b"};
  EXPECT_EQ(samples_of_epochs(config, disk, 1, counting), 99 + 119) << "whole samples of both sources";
  EXPECT_EQ(
      build_datasets(config, {.sequence_length = 10, .sizes = {1000, 0, 0}, .eod = 7, .vocab_size = 0}).train->size(),
      99 + 119);
  const std::string error = test::catch_error([&] { samples_of_epochs(config, disk, 2, counting); });
  EXPECT_NE(error.find("train.train_epochs = 2: datasets without weights are read once"), std::string::npos) << error;
  EXPECT_NE(error.find(base::concat(":", " 100 ", scratch / "a", " 120 ", scratch / "b")), std::string::npos)
      << error;
  EXPECT_THROW(samples_of_epochs(config, disk, 0.001, counting), base::Error) << "less than a sample";
  config.data_path = {scratch / "nowhere"};
  EXPECT_THROW(samples_of_epochs(config, disk, 1, counting), base::Error);
}

TEST_F(TokenCount, MockDataHasTheTokensOfItsDataset) {
  config.mock_data = true;
  const auto splits = build_datasets(config, {.sequence_length = 16, .sizes = {-1, 0, 0}, .eod = 7, .vocab_size = 8});
  const SourceTokens mock = found().at(0);
  EXPECT_EQ(mock.documents, 33333);
  EXPECT_EQ(splits.train->size(), (mock.tokens - 1) / 16) << "one epoch, cut into samples of 16 and a label";
}

}  // namespace
}  // namespace metroplex::data::token_count_test

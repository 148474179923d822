#include "data/build.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/blend.h"
#include "data/gpt_dataset.h"
#include "data/scratch.h"
#include "files/file_system.h"
#include "support/error_of.h"

namespace metroplex::data::build_test {
namespace {

Splits build_datasets(const config::Data& config, const BuildOptions& options) {
  files::PosixFileSystem disk;
  return data::build_datasets(config, options, disk);
}

class Build : public ::testing::Test {
 protected:
  void SetUp() override {
    write_corpus(scratch / "a", std::vector<int64_t>(50, 20));
    write_corpus(scratch / "b", std::vector<int64_t>(30, 40));
  }
  std::string refusal(const config::Data& config, const BuildOptions& options) const {
    return test::catch_error([&] { build_datasets(config, options); });
  }

  Scratch scratch;
  config::Data config;
  BuildOptions options{8, 1234, {100, 5, 5}, 0, 0};
};

TEST_F(Build, OpensOneDatasetInThreeSplits) {
  config.data_path = {scratch / "a"};
  config.split = "8,1,1";
  const Splits splits = build_datasets(config, options);
  EXPECT_GE(splits.train->size(), 100);
  EXPECT_GE(splits.valid.at(0)->size(), 5);
  Sample sample;
  splits.valid.at(0)->get(0, sample);
  for (const int64_t token : sample.tokens) EXPECT_TRUE(token == 0 || (token >= 4100 && token < 4600)) << token;
}

TEST_F(Build, ASplitWithoutADocumentNamesTheWayOut) {
  config.data_path = {scratch / "a"};
  config.split = "995,5,0";
  const std::string share = refusal(config, options);
  for (const char* word : {"split valid", "0 of its 50 documents", "data.split is '995,5,0'",
                           "80,10,10 would give it 5", "train.eval_iters = 0"})
    EXPECT_NE(share.find(word), std::string::npos) << share;
  write_corpus(scratch / "one", std::vector<int64_t>(1, 900));
  config.data_path = {scratch / "one"};
  // check_splits reports the same error and writes no cache.
  files::PosixFileSystem disk;
  std::string looked;
  config.data_cache_path = scratch / "of its own";
  try {
    check_splits(config, options, disk);
  } catch (const base::Error& error) { looked = error.what(); }
  EXPECT_FALSE(std::filesystem::exists(config.data_cache_path));
  const std::string documents = refusal(config, options);
  EXPECT_EQ(looked, documents);
  for (const char* word : {"0 of its 1 documents", "--split-documents", "train.eval_iters = 0"})
    EXPECT_NE(documents.find(word), std::string::npos) << documents;
}

TEST_F(Build, AnOrderThatTakesTooMuchMemoryIsReportedForEachSplit) {
  files::PosixFileSystem disk;
  config.data_cache_path = scratch / "of its own";
  constexpr int64_t kTooMany = int64_t{1} << 45;
  for (const bool mock : {false, true}) {
    config.mock_data = mock;
    config.data_path = mock ? std::vector<std::string>{} : std::vector<std::string>{scratch / "a"};
    config.split = "8,1,1";
    options.vocab_size = mock ? 100 : 0;
    for (size_t split = 0; split < 3; ++split) {
      options.sizes = {100, 5, 5};
      EXPECT_EQ(order_problem(config, options, disk), "");
      options.sizes[split] = kTooMany;
      const std::string problem = order_problem(config, options, disk);
      EXPECT_EQ(problem.find(base::concat("split ", kSplitNames[split], " of '")), 0u) << problem;
      EXPECT_NE(problem.find("bytes of memory, but "), std::string::npos) << problem;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(config.data_cache_path));
}

// 122 samples per epoch (49 documents of 20 tokens); the last epoch is shuffled separately if less than 0.8 of it is
// needed.
TEST_F(Build, TheOrderOfTheSamplesIsThatOfTheirEpochs) {
  config.data_path = {scratch / "a"};
  config.split = "98,1,1";
  const auto made = [&](int64_t samples) {
    options.sizes = {samples, 0, 0};
    const Splits splits = build_datasets(config, options);
    EXPECT_TRUE(splits.valid.empty()) << "none is requested";
    std::vector<int64_t> first;
    Sample sample;
    for (int64_t i = 0; i < 20; ++i) {
      splits.train->get(i, sample);
      first.insert(first.end(), sample.tokens.begin(), sample.tokens.end());
    }
    return std::pair(splits.train_order.epochs, first);
  };
  const auto one = made(100);
  EXPECT_EQ(one.first, "1");
  EXPECT_EQ(made(120), one);
  for (const auto& [samples, epochs] : std::vector<std::pair<int64_t, std::string>>{
           {200, "2 (the last apart)"}, {240, "2"}, {400, "4 (the last apart)"}}) {
    const auto longer = made(samples);
    EXPECT_EQ(longer.first, epochs);
    EXPECT_NE(longer.second, one.second) << samples;
  }
  config.data_path = {"1", scratch / "a", "1", scratch / "b"};
  EXPECT_EQ(made(200).first, "1, 1");
  config.data_path[0] = "3";
  EXPECT_EQ(made(200).first, "2 (the last apart), 1");
  const std::string sources = build_datasets(config, options).train_order.sources;
  config.data_path[0] = "1";
  EXPECT_EQ(made(300).first, "2 (the last apart), 2 (the last apart)");
  EXPECT_NE(build_datasets(config, options).train_order.sources, sources) << "other weights mix in another order";
}

// The suggested command line runs as printed.
TEST_F(Build, TextIsNoDatasetAndTheWayToOneIsALine) {
  std::ofstream(scratch / "my notes.txt") << "Once upon a time\n";
  config.data_path = {scratch / "my notes.txt"};
  config.tokenizer_type = config::TokenizerType::bytes;
  const std::string text = refusal(config, options), prefix = scratch / "my notes_document";
  EXPECT_NE(text.find("\n  metroplex preprocess --input '" + (scratch / "my notes.txt") +
                      "' --tokenizer-type bytes --append-eod --output-prefix '" + prefix + "'\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("data.data_path = " + prefix), std::string::npos) << text;
  EXPECT_EQ(text.find("data.tokenizer_type ="), std::string::npos) << text;
  config.tokenizer_type = config::TokenizerType::sentencepiece;
  config.tokenizer_model = "words.model";
  EXPECT_NE(
      refusal(config, options).find("--tokenizer-type sentencepiece --tokenizer-model words.model --append-eod"),
      std::string::npos);
  config.tokenizer_type = config::TokenizerType::none;
  EXPECT_NE(refusal(config, options).find("with data.tokenizer_type = bytes"), std::string::npos);
  files::PosixFileSystem disk;
  EXPECT_EQ(way_from_text(disk, scratch / "a", config), "") << "a dataset";
  EXPECT_EQ(way_from_text(disk, scratch / "a.bin", config), "");
  EXPECT_EQ(way_from_text(disk, scratch / "nowhere", config), "");
}

TEST_F(Build, KeepsTheIndexInACacheBesideTheData) {
  config.data_path = {scratch / "a"};
  config.split = "1";
  build_datasets(config, options);
  size_t arrays = 0;
  for (const auto& entry : std::filesystem::directory_iterator(scratch / "cache"))
    arrays += entry.path().extension() == ".npy";
  EXPECT_EQ(arrays, 3u);
}

TEST_F(Build, BuildsTheIndexAnewWhenTheDataIsAnother) {
  config.data_path = {scratch / "a"};
  config.split = "1";
  const auto before = build_datasets(config, options).train->size();
  write_corpus(scratch / "a", std::vector<int64_t>(50, 3));
  const auto after = build_datasets(config, options);
  EXPECT_NE(after.train->size(), before);
  Sample sample;
  for (int64_t i = 0; i < after.train->size(); ++i) after.train->get(i, sample);
}

TEST_F(Build, BlendsByWeight) {
  config.data_path = {"0.25", scratch / "a", "0.75", scratch / "b"};
  config.split = "1";
  options.sizes = {100, 0, 0};
  const Splits splits = build_datasets(config, options);
  EXPECT_EQ(splits.train->size(), 100);
  EXPECT_TRUE(splits.valid.empty());
  EXPECT_NE(dynamic_cast<const BlendedDataset*>(splits.train.get()), nullptr);
}

TEST_F(Build, ReadsEverySampleOfABlendOnceWithoutASize) {
  config.data_path = {scratch / "a", scratch / "b"};
  config.split = "1";
  options.sizes = {-1, 0, 0};
  EXPECT_EQ(build_datasets(config, options).train->size(), 999 / 8 + 1199 / 8);
}

TEST_F(Build, BlendWithoutWeightsEndsAtItsSize) {
  config.data_path = {scratch / "a", scratch / "b"};
  config.split = "1";
  options.sizes = {50, 0, 0};
  EXPECT_EQ(build_datasets(config, options).train->size(), 50);
}

TEST_F(Build, TakesABlendPerSplit) {
  config.train_data_path = {"1", scratch / "a", "1", scratch / "b"};
  config.valid_data_path = {scratch / "b"};
  const Splits splits = build_datasets(config, options);
  EXPECT_EQ(splits.train->size(), 100);
  EXPECT_GE(splits.valid.at(0)->size(), 5);
  EXPECT_EQ(splits.test, nullptr);
}

TEST_F(Build, MakesMockDataWithoutAFile) {
  config.mock_data = true;
  options.vocab_size = 128;
  options.eod = 127;
  options.sequence_length = 64;
  const Splits splits = build_datasets(config, options);
  Sample sample;
  splits.test->get(3, sample);
  EXPECT_EQ(sample.tokens.size(), 64u);
  for (const int64_t token : sample.tokens) EXPECT_TRUE(token >= 0 && token < 128);
}

TEST_F(Build, SaysWhatIsWrongAndHowToMendIt) {
  EXPECT_NE(refusal(config, options).find("data.data_path"), std::string::npos);

  config.data_path = {scratch / "a"};
  config.mock_data = true;
  EXPECT_NE(refusal(config, options).find("2 are set"), std::string::npos);
  config.mock_data = false;

  config.data_path = {scratch / "missing"};
  EXPECT_NE(refusal(config, options).find("missing.idx"), std::string::npos);

  config.data_path = {scratch / "a"};
  config.split = "1000,1,0";
  EXPECT_NE(refusal(config, options).find("split valid"), std::string::npos);

  config.data_path = {"1", scratch / "a", "0", scratch / "b"};
  EXPECT_NE(refusal(config, options).find("weight 0"), std::string::npos);

  config.data_path = {scratch / "a"};
  config.split = "1";
  options.seed = uint64_t{1} << 32;
  EXPECT_NE(refusal(config, options).find("seed"), std::string::npos);

  options.seed = 1;
  options.eod = -1;
  config.reset_attention_mask = true;
  EXPECT_NE(refusal(config, options).find("end-of-document"), std::string::npos);
}

TEST_F(Build, MultipleValidationSetsStaySeparate) {
  config.train_data_path = {scratch / "a"};
  config.valid_data_path = {scratch / "a", scratch / "b"};
  config.multiple_validation_sets = true;
  options.sizes = {100, -1, 0};
  const Splits splits = build_datasets(config, options);
  ASSERT_EQ(splits.valid.size(), 2u);
  // One epoch of 50 * 20 and of 30 * 40 tokens in samples of 8 tokens plus one that is only predicted.
  EXPECT_EQ(splits.valid[0]->size(), (50 * 20 - 1) / 8);
  EXPECT_EQ(splits.valid[1]->size(), (30 * 40 - 1) / 8);
  config.multiple_validation_sets = false;
  EXPECT_EQ(build_datasets(config, options).valid.size(), 1u);
  config.multiple_validation_sets = true;
  config.valid_data_path = {"0.5", scratch / "a", "0.5", scratch / "b"};
  EXPECT_THAT(refusal(config, options), ::testing::HasSubstr("data.valid_data_path: weights have no meaning"));
}

TEST_F(Build, DatasetOfAnotherTokenizerIsRefused) {
  std::ofstream(scratch / "b.preprocess.json") << R"({"tokenizer": "bytes of 257 ids", "append_eod": true})";
  config.data_path = {scratch / "a", scratch / "b"};
  config.split = "8,1,1";
  options.tokenizer = "bytes of 257 ids";
  build_datasets(config, options);
  options.tokenizer = "bpe of 300 ids";
  EXPECT_THAT(
      refusal(config, options),
      ::testing::AllOf(::testing::HasSubstr("b'"), ::testing::HasSubstr("bytes of 257 ids"),
                       ::testing::HasSubstr("bpe of 300 ids"), ::testing::HasSubstr("data.allow_other_tokenizer")));
  config.allow_other_tokenizer = true;
  build_datasets(config, options);
}

TEST_F(Build, DatasetsWithoutDocumentEndsAreNamed) {
  config.data_path = {scratch / "a", scratch / "b"};
  files::PosixFileSystem disk;
  EXPECT_EQ(datasets_without_ends(config, 1000000, disk), "'" + (scratch / "a") + "', '" + (scratch / "b") + "'");
  EXPECT_EQ(datasets_without_ends(config, 4103, disk), "'" + (scratch / "b") + "'") << "document 40 of a has it";
  EXPECT_EQ(datasets_without_ends(config, 0, disk), "") << "ends every document";
}

}  // namespace
}  // namespace metroplex::data::build_test

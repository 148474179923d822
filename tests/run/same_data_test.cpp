// Checks if a resumed run reads the sample order of its checkpoint.
#include "run/same_data.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace metroplex::test::same_data_test {
namespace {

config::Config text_corpus() {
  config::Config config;
  config.data.data_path = {"a/text"};
  config.data.split = "90, 10";
  return config;
}

// Between a run on text_corpus() and one changed by `change` with sources `here`.
std::string difference(const std::function<void(config::Config&)>& change, const std::string& here = "sum 1") {
  config::Config mine = text_corpus(), saved = text_corpus();
  change(mine);
  return run::data_differences({mine, {here, ""}}, {saved, {"sum 1", ""}});
}

TEST(SameData, TheSameDocumentsMayLieElsewhereAndSharesMayBeWrittenOtherwise) {
  EXPECT_EQ(difference([](config::Config&) {}), "");
  EXPECT_EQ(difference([](config::Config& config) { config.data.data_path = {"elsewhere/text"}; }), "");
  for (const char* split : {"90,10", "9,1,0", "0.9, 0.1"})
    EXPECT_EQ(difference([&](config::Config& config) { config.data.split = split; }), "") << split;
  EXPECT_EQ(difference([](config::Config& config) { config.data.valid_data_path = {"b"}; }), "")
      << "no sample of training";
}

TEST(SameData, EveryOtherOrderIsNamedByItsKeyWithBothValues) {
  EXPECT_EQ(difference([](config::Config& config) { config.train.seq_length = 32; }),
            "\n  train.seq_length is 32 here and was " + std::to_string(text_corpus().train.seq_length));
  EXPECT_EQ(difference([](config::Config& config) { config.data.split = "80,20"; }),
            "\n  data.split is \"80,20\" here and was \"90, 10\"");
  EXPECT_EQ(difference([](config::Config& config) { config.data.dataloader_type = config::Dataloader::cyclic; }),
            "\n  data.dataloader_type is cyclic here and was single");
  EXPECT_EQ(difference(
                [](config::Config& config) {
                  config.data.data_path = {"3", "a/text", "1", "b"};
                },
                "sum 2"),
            "\n  data.data_path is \"3 a/text 1 b\" here and was \"a/text\"");
  EXPECT_EQ(difference([](config::Config&) {}, "sum 2"),
            "\n  data.data_path is \"a/text\" as before, but contains other documents");
  const auto mock = [](config::Config& config) { config.data.data_path.clear(), config.data.mock_data = true; };
  EXPECT_EQ(difference(mock, "mock"), "\n  data.mock_data is true here, and it was data.data_path = \"a/text\"");
  const auto own = [](config::Config& config) { config.data.data_path.clear(), config.data.train_data_path = {"b"}; };
  EXPECT_EQ(difference(own, "sum 2"),
            "\n  data.train_data_path is \"b\" here, and it was data.data_path = \"a/text\"");
}

TEST(SameData, WhatACheckpointDoesNotSayIsTakenForTheSameInALine) {
  config::Config mine = text_corpus(), saved = text_corpus();
  mine.data.data_path = {"b"};
  EXPECT_EQ(run::data_differences({mine, {"sum 2", "1"}}, {saved, {}}), "");
  EXPECT_EQ(run::data_note({mine, {"sum 2", "1"}}, {saved, {}}),
            "the checkpoint does not record its training documents: data.data_path = \"b\" is assumed to be "
            "data.data_path = \"a/text\"");
  EXPECT_EQ(run::data_note({mine, {"sum 2", "2"}}, {saved, {"sum 1", "1"}}), "");
  mine.train.seq_length = 7;
  EXPECT_NE(run::data_differences({mine, {"sum 2", "1"}}, {saved, {}}), "") << "by its configuration";
}

// A longer run may need more epochs: it is accepted, with a note that the order differs.
TEST(SameData, OtherEpochsOfTheSameDocumentsAreTold) {
  const config::Config text = text_corpus();
  const auto note = [&](const std::string& here, const std::string& there) {
    EXPECT_EQ(run::data_differences({text, {"sum 1", here}}, {text, {"sum 1", there}}), "");
    return run::data_note({text, {"sum 1", here}}, {text, {"sum 1", there}});
  };
  EXPECT_EQ(note("2, 1", "2, 1"), "");
  EXPECT_EQ(note("2", ""), "") << "an older checkpoint does not say";
  const std::string told = note("3 (the last apart)", "2");
  for (const char* word :
       {"epochs of the training documents: 3 (the last apart) here, 2 before", "order", "train.train_iters"})
    EXPECT_NE(told.find(word), std::string::npos) << told;
}

TEST(SameData, OnlyAWordOfConsentLetsADifferencePass) {
  config::Checkpoint checkpoint;
  try {
    run::check_data_override(checkpoint, "\n  a.key is 1 here and was 2", "runs/iter_5", 20);
    ADD_FAILURE() << "accepted";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.room(), "checkpoint");
    for (const char* word :
         {"'runs/iter_5' is at sample 20", "a.key is 1 here and was 2", "read twice and some never",
          "checkpoint.finetune", "checkpoint.resume_with_other_data=true"})
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
  checkpoint.resume_with_other_data = true;
  run::check_data_override(checkpoint, "\n  a.key is 1 here and was 2", "runs/iter_5", 20);
}

}  // namespace
}  // namespace metroplex::test::same_data_test

// Both reports of a dry run describe the run, and it leaves no files.
#include "forecast/dry_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/fields.h"
#include "files/indexed_dataset.h"
#include "plan/model_flops.h"
#include "plan/schedules/registry.h"
#include "replay/timeline.h"
#include "support/folder.h"
#include "forecast/fit_case.h"

namespace metroplex::test::dry_run_test {
namespace {

using forecast::DryRun;
using forecast::FitRequest;
using nlohmann::json;

const std::vector<std::string> kEight{"parallel.tensor_model_parallel_size=2",
                                      "parallel.pipeline_model_parallel_size=2"};

DryRun dry(const FitRequest& request, const forecast::Predictor& predict = forecast::predict_rank) {
  files::PosixFileSystem disk;
  return forecast::dry_run(request, disk, predict);
}

json parse_json(const DryRun& run) { return json::parse(forecast::json(run)); }

// For 8 layers: matrices 3h h + h h + 4h h + 4h h, norms 2 x 2h, biases 3h + h + 4h + h. Words, positions, last norm.
constexpr int64_t kWords = 128 * 64;
constexpr int64_t kModel = 8 * (12 * 64 * 64 + 13 * 64) + kWords + 32 * 64 + 2 * 64;

TEST(DryRun, ParametersOfTheModelDoNotDependOnTheLayout) {
  EXPECT_EQ(dry(fit_request(1)).num_params, kModel);
  // Two tensor-parallel ranks pad 128 words to 256; the number of positions is the same.
  EXPECT_EQ(dry(fit_request(8, kEight)).num_params, kModel + kWords);
  const std::vector<std::string> layout{
      "parallel.pipeline_model_parallel_size=2", "parallel.pipeline_model_parallel_layout=Ett|t|ttt|ttL",
      "parallel.data_parallel_sharding_strategy=optim_grads_params", "memory.recompute_granularity=selective"};
  EXPECT_EQ(dry(fit_request(2, layout)).num_params, kModel);
}

// Products of codes need a multiple of 16 tokens in a microbatch, not in a sequence.
TEST(DryRun, ProductsOfCodesHaveTheTokensOfAMicrobatch) {
  const std::vector<std::string> codes{"train.seq_length=24", "train.micro_batch_size=2", "train.global_batch_size=2",
                                       "precision.fp8_format=hybrid", "precision.fp8_products=library"};
  EXPECT_EQ(dry(fit_request(1, codes)).num_params, kModel - 8 * 64);  // 24 positions
}

TEST(DryRun, OperationsAreThoseOfTheIterationLine) {
  const FitRequest request = fit_request(8, kEight);
  const DryRun run = dry(request);
  const int64_t padded = config::padded_vocab_size(kFitVocab, 128, 2);
  const double whole = plan::step_flops(plan::model_shape(request.config, padded), {.batch_size = 64});
  EXPECT_NEAR(run.model_flops / whole, 1, 1e-14);  // at most 32 of the same products in another order: 32 * 1.1e-16
  EXPECT_GT(run.step_flops, run.model_flops);      // fused attention recomputes its scores in backward
  EXPECT_EQ(run.step_tokens, 64 * 32);
  EXPECT_EQ(run.all_tokens(), 10 * 64 * 32);
}

// 8 layers, half of them with 8 experts of width 96: 2 experts process each token.
const std::vector<std::string> kExperts{"model.num_moe_experts=8", "model.moe_layer_freq=2",
                                        "model.moe_ffn_hidden_size=96", "model.add_bias_linear=false"};

TEST(DryRun, OfExpertsSaysWhatTakesPartForAToken) {
  const DryRun run = dry(fit_request(1, kExperts));
  constexpr int64_t kExpert = 2 * 64 * 96;
  EXPECT_EQ(run.num_params - run.active_params, 4 * 6 * kExpert);
  // One multiply-add forward and two backward for each weight.
  EXPECT_NEAR((run.token_flops_all - run.token_flops_active) / (6.0 * 4 * 6 * kExpert), 1, 1e-12);
  EXPECT_EQ(parse_json(run)["parameters"]["active"], run.active_params);
  EXPECT_EQ(parse_json(run)["operations"]["token_by_formula"]["active"], run.token_flops_active);
  EXPECT_NE(forecast::text(run).find("take part for a token"), std::string::npos);
  EXPECT_EQ(forecast::text(dry(fit_request(1))).find("take part"), std::string::npos);
}

// Both stages have expert layers: 3 and 1 of the 4.
TEST(DryRun, OperationsOfExpertsAreThoseOfTheStagesTogether) {
  std::vector<std::string> all = kExperts;
  all.insert(all.end(), {"parallel.pipeline_model_parallel_size=2", "parallel.expert_model_parallel_size=2",
                         "parallel.pipeline_model_parallel_layout=Ettttt|tttL"});
  const FitRequest request = fit_request(4, all);
  const DryRun run = dry(request);
  const double whole = plan::step_flops(plan::model_shape(request.config, 128), {.batch_size = 64});
  EXPECT_NEAR(run.model_flops / whole, 1, 1e-14);  // as above
}

// Equal stages of only layers have the textbook bubble; a head makes the last stage longer.
TEST(DryRun, TheBubbleIsThatOfTheTableWithEveryRanksOperations) {
  const DryRun run = dry(fit_request(8, kEight));
  EXPECT_DOUBLE_EQ(run.pipeline.formula_bubble_share, 1.0 / (8 + 1));  // 64 samples: 8 microbatches of 4 x 2 ranks
  ASSERT_TRUE(run.pipeline.bubble_share.has_value());
  EXPECT_GT(*run.pipeline.bubble_share, run.pipeline.formula_bubble_share + 0.01);
  EXPECT_EQ(run.pipeline.live_microbatches, (std::vector<double>{2, 1}));
  const Planted equal{[](const forecast::RankRequest&) { return 1; }};
  EXPECT_NEAR(*dry(fit_request(8, kEight), equal).pipeline.bubble_share, 1.0 / 9, 1e-14);  // sums of at most 32 times
}

const forecast::ScheduleOutlook* find_schedule(const std::vector<forecast::ScheduleOutlook>& rows,
                                               const std::string& name, int64_t other_chunks = 0) {
  std::vector<std::string> settings{"parallel.pipeline_schedule=" + name};
  if (other_chunks > 0)
    settings.push_back(base::concat("parallel.virtual_pipeline_model_parallel_size=", other_chunks));
  for (const forecast::ScheduleOutlook& row : rows) {
    std::vector<std::string> without_times = row.settings;
    std::erase_if(without_times, [](const std::string& setting) { return setting.find("_times=") != setting.npos; });
    if (without_times == settings) return &row;
  }
  return nullptr;
}

// Tolerance of a bubble share 1 - busy / length: both are sums of at most 400 times, 400 x 2^-53 = 4.4e-14 relative
// each, so 9e-14 together.
constexpr double kShareTolerance = 1e-13;

// Ranks with equal times of forward, backward and weight actions: the formulas of docs/pipeline.md.
TEST(DryRun, SchedulesAreComparedForTheWholeRun) {
  const Planted by_schedule{[](const forecast::RankRequest& request) {
    return 100 * static_cast<int64_t>(config::Schedule(request.config.parallel.pipeline_schedule)) +
           request.config.parallel.vpp();
  }};
  DryRun run = dry(fit_request(4, {"parallel.pipeline_model_parallel_size=4"}), by_schedule);
  EXPECT_TRUE(run.schedules.empty());
  run.schedules = forecast::compare_schedules(run, by_schedule);
  struct Row {
    const char* name;
    int64_t chunks;
    double bubble, live;
  };
  const Row expected[] = {
      {"gpipe", 0, 3.0 / 19, 16},       {"1f1b", 0, 3.0 / 19, 4},     {"interleaved", 2, 3.0 / 35, 5.5},
      {"zb_h1", 0, 3.0 / 51, 4},        {"zb_h2", 0, 3.0 / 51, 7},    {"zb_v", 2, 3.0 / 99, 4},
      {"dualpipe_v", 2, 3.0 / 99, 4.5}, {"searched", 0, 3.0 / 51, 4}, {"searched", 2, 3.0 / 99, 4}};
  EXPECT_EQ(run.schedules.size(), std::size(expected));
  for (const Row& row : expected) {
    SCOPED_TRACE(row.name);
    const auto* const found = find_schedule(run.schedules, row.name, row.chunks);
    ASSERT_NE(found, nullptr);
    EXPECT_NEAR(found->pipeline.bubble_share.value(), row.bubble, kShareTolerance);
    const std::vector<double>& live = found->pipeline.live_microbatches;
    EXPECT_EQ(*std::max_element(live.begin(), live.end()), row.live);
    const auto schedule = config::Choice<config::Schedule>(row.name);
    EXPECT_EQ(found->need, 100 * static_cast<int64_t>(config::Schedule(schedule)) + std::max<int64_t>(1, row.chunks));
    EXPECT_NE(forecast::text(run).find(row.name), std::string::npos);
  }
  EXPECT_EQ(parse_json(run)["schedules"].size(), std::size(expected));
  EXPECT_TRUE(forecast::compare_schedules(dry(fit_request(1))).empty());
}

// ECHO excludes the schedules that split backward.
TEST(DryRun, OnlySchedulesThatTheRunAllowsAreCompared) {
  std::vector<std::string> settings = kExperts;
  settings.insert(settings.end(), {"parallel.pipeline_model_parallel_size=2", "parallel.expert_model_parallel_size=2",
                                   "model.moe_enable_echo=true", "model.moe_num_echo_experts=2"});
  const auto rows = forecast::compare_schedules(dry(fit_request(4, settings)));
  EXPECT_NE(find_schedule(rows, "1f1b"), nullptr);
  EXPECT_EQ(find_schedule(rows, "zb_h1"), nullptr);
  EXPECT_EQ(find_schedule(rows, "zb_v", 2), nullptr);
}

// In a V the second rank holds the two middle stages, and the first one the head.
TEST(DryRun, UnevenRanksOfAVHaveBothOfTheirStages) {
  const forecast::Predictor uneven = [](const forecast::RankRequest& request) {
    forecast::RankPrediction out;
    out.flops = (request.rank == 0) == (request.config.parallel.vpp() == 1) ? 3e12 : 6e12;
    out.forward_flops = out.flops / 3;
    return out;
  };
  const auto rows =
      forecast::compare_schedules(dry(fit_request(2, {"parallel.pipeline_model_parallel_size=2"}), uneven), uneven);
  const auto* const found = find_schedule(rows, "zb_v", 2);
  ASSERT_NE(found, nullptr);
  plan::ScheduleRequest request;
  request.num_stages = request.num_chunks = 2;
  request.num_microbatches = 16;
  const config::Choice<config::Schedule> zb_v("zb_v");
  const double slow = 4.0 / 3, fast = 2.0 / 3;
  const replay::Timeline timeline =
      replay::replay(plan::build_schedule(zb_v, request), {.stage_scale = {slow, fast, fast, slow}});
  EXPECT_NEAR(found->pipeline.bubble_share.value(), timeline.total_bubble_share, kShareTolerance);
}

// Layers of both stages, with their own exchanges: for b 4, s 16 rows of keys and values of 2 x 64 in bf16.
TEST(DryRun, OfContextParallelismSaysWhatEachLayerSends) {
  const FitRequest request =
      fit_request(4, {"parallel.context_parallel_size=2", "parallel.pipeline_model_parallel_size=2",
                      "parallel.cp_comm_type=p2p,p2p,p2p,all_gather,p2p,p2p,a2a,p2p"});
  const DryRun run = dry(request);
  const json out = parse_json(run)["context_parallel"];
  EXPECT_EQ(out["cut"], "zigzag");
  ASSERT_EQ(out["layers"].size(), 8u);
  const int64_t kv = 4 * 16 * 2 * 64 * 2, product = 2 * 4 * 64 * 16 * 32 / 2;
  for (size_t layer = 0; layer < 8; ++layer) {
    const json& of = out["layers"][layer];
    EXPECT_EQ(of["layer"], layer);
    EXPECT_EQ(of["exchange"], layer == 3 ? "all_gather" : layer == 6 ? "a2a" : "p2p");
    EXPECT_EQ(of["bytes"]["forward"], kv) << "by a2a half of q, k, v and out";
    EXPECT_EQ(of["bytes"]["backward"], layer == 3 || layer == 6 ? 2 * kv : kv + 2 * 2 * kv) << "p2p: sums in fp32";
    EXPECT_EQ(of["operations"]["forward"], 2 * product);
    EXPECT_EQ(of["operations"]["backward"], 5 * product);
  }
  const std::string text = forecast::text(run);
  EXPECT_NE(text.find("p2p (6 layers) sends 16.0 KiB forward and 80.0 KiB backward"), std::string::npos) << text;
  EXPECT_TRUE(parse_json(dry(fit_request(4)))["context_parallel"].is_null());
}

TEST(DryRun, JsonHoldsTheTableInWholeBytes) {
  FitRequest request = fit_request(8, kEight, machine(8, 1000));
  request.config.precision.grad_norm_skip_threshold = std::numeric_limits<double>::infinity();
  const DryRun run = dry(request);
  const json out = parse_json(run);
  EXPECT_EQ(out["fits"], false);
  EXPECT_EQ(out["ranks"], 8);
  EXPECT_EQ(out["memory"]["have"], 1000);
  EXPECT_EQ(out["memory"]["need"], run.fit.need);
  ASSERT_EQ(out["memory"]["ranks"].size(), 2u);
  for (const json& rank : out["memory"]["ranks"]) {
    const auto predicted = forecast::predict_memory({request.config, 8, rank["rank"].get<int>(), kFitVocab, 0});
    EXPECT_EQ(rank["peak"], predicted.peak);
    for (const replay::MemoryCategory& category : replay::kMemoryCategories) {
      EXPECT_TRUE(rank["bytes"][category.name].is_number_integer());
      EXPECT_EQ(rank["bytes"][category.name], predicted.use.*category.bytes) << category.name;
    }
  }
  EXPECT_EQ(out["memory_options"]["single"].size(), run.memory_options->single.size());
  EXPECT_EQ(out["memory_options"]["single"][0]["saves"], run.memory_options->single[0].saves);
  EXPECT_EQ(out["config"]["model"]["num_layers"], 8);
  EXPECT_EQ(out["config"]["precision"]["params_dtype"], "bf16");
  EXPECT_EQ(out["config"]["precision"]["grad_norm_skip_threshold"], "inf");
  config::Config config = request.config;
  for (const config::Field& field : config::fields(config))
    EXPECT_TRUE(out["config"][field.section].contains(field.name)) << field.key();
}

TEST(DryRun, JsonReplacesBytesThatAreNotUtf8) {
  DryRun run = dry(fit_request(1));
  run.notes = {"a script of folder \xff"};
  run.refused = "no \xff";
  EXPECT_EQ(parse_json(run)["notes"].back(), "a script of folder \uFFFD");
  EXPECT_EQ(parse_json(run)["refused"], "no \uFFFD");
}

TEST(DryRun, WhatIsNotKnownIsNull) {
  FitRequest request = fit_request(8, kEight);
  const json out = parse_json(dry(request));
  EXPECT_TRUE(out["fits"].is_null());
  EXPECT_TRUE(out["memory"]["have"].is_null());
  EXPECT_TRUE(out["memory_options"].is_null());
  EXPECT_NE(forecast::text(dry(request)).find("is not known"), std::string::npos);
}

TEST(DryRun, TheTextNamesEveryKindThePeakAndTheVerdict) {
  const std::string small = forecast::text(dry(fit_request(8, kEight, machine(8, 1000))));
  for (const char* word : {"parameters", "gradients", "main parameters", "moments", "activations", "workspace",
                           "peak", "rank 0 (pp 0)", "rank 4 (pp 1)", "1000 B (the test)", "it cannot fit", "saves",
                           "--memory.", "8 ranks of a machine", "1f1b, 8 microbatches of 4"})
    EXPECT_NE(small.find(word), std::string::npos) << word << " in\n" << small;
  const std::string large = forecast::text(dry(fit_request(8, kEight, gpus(int64_t{1} << 40))));
  for (const char* word : {"a GPU has 1.0 TiB", "it fits"}) EXPECT_NE(large.find(word), std::string::npos) << large;
  EXPECT_EQ(large.find("saves"), std::string::npos) << large;
}

TEST(DryRun, DataThatIsThereIsCountedAndNothingIsWritten) {
  const Folder folder;
  files::PosixFileSystem disk;
  {
    files::IndexedDatasetWriter writer(disk, folder.at("corpus"), files::TokenType::i32);
    for (int document = 0; document < 10; ++document) {
      writer.add_sequence(std::vector<int64_t>(100, 1));
      writer.end_document();
    }
    writer.finalize();
  }
  FitRequest request = fit_request(1, {"data.mock_data=false", "data.data_path=" + folder.at("corpus"),
                                       "data.split=8,1,1", "checkpoint.save=" + folder.at("ck"),
                                       "checkpoint.save_interval=5", "train.tensorboard_dir=" + folder.at("tb")});
  const DryRun run = dry(request);
  ASSERT_EQ(run.sources.size(), 1u);
  EXPECT_EQ(run.sources[0].documents, 8);
  EXPECT_EQ(run.sources[0].tokens, 800);
  EXPECT_DOUBLE_EQ(*run.epochs(run.sources[0]), 10 * 64 * 32 / 800.0);
  EXPECT_NE(forecast::text(run).find("25.6 epochs"), std::string::npos) << forecast::text(run);
  int64_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++files;
  EXPECT_EQ(files, 2) << "corpus.bin and corpus.idx";
}

TEST(DryRun, SixteenThousandRanksAreAFewPredictions) {
  int calls = 0;
  const Planted planted{[](const forecast::RankRequest&) { return 1; }, &calls};
  const DryRun run =
      dry(fit_request(16384,
                      {"parallel.tensor_model_parallel_size=4", "parallel.pipeline_model_parallel_size=8",
                       "train.global_batch_size=65536", "parallel.data_parallel_sharding_strategy=optim"},
                      gpus(1000)),
          planted);
  EXPECT_EQ(calls, 2 * 8 + 1) << "both ends of every pipeline rank, and the model on one rank";
  EXPECT_TRUE(run.fits());
}

TEST(DryRun, ARefusalHoldsTheTableTheWaysAndTheWayPastIt) {
  const FitRequest request = fit_request(8, kEight, machine(8, 1000));
  const forecast::Fit fit = forecast::fit(request);
  const std::string text = forecast::refusal(request, fit, forecast::memory_options(request, fit));
  for (const char* word : {"this run cannot fit", "main parameters", "saves", "--", "memory.check_fit = warn"})
    EXPECT_NE(text.find(word), std::string::npos) << text;
  EXPECT_LT(text.size(), 4000u);
}

TEST(DryRun, TheStartOfARunIsTheSameInThreeLines) {
  const FitRequest request = fit_request(8, kEight, machine(8, 1000));
  const DryRun run = dry(request);
  const std::vector<std::string> lines = forecast::summary(request, run.fit, run.fit.need);
  ASSERT_EQ(lines.size(), 3u);
  const std::string all = forecast::text(run);
  for (const char* word : {" parameters, ", " operations by formula a step of 2.05 thousand tokens"})
    EXPECT_NE(lines[0].find(word), std::string::npos) << lines[0];
  const std::string operations = lines[0].substr(lines[0].find("; ") + 2);
  const std::string count = operations.substr(0, operations.find(" operations"));
  EXPECT_NE(all.find("(" + count + " by formula)"), std::string::npos) << count << " in\n" << all;
  EXPECT_EQ(lines[1], " pipeline: 1f1b, 8 microbatches, bubble 11.1 % by formula");
  EXPECT_EQ(lines[2].find("elsewhere"), std::string::npos) << lines[2];
  EXPECT_NE(forecast::summary(request, run.fit, 2 * run.fit.need)[2].find("elsewhere"), std::string::npos);
  EXPECT_EQ(forecast::summary(fit_request(1), run.fit, 0).size(), 2u) << "without a pipeline";
}

}  // namespace
}  // namespace metroplex::test::dry_run_test

// The requirement of a memory domain is the sum of its ranks' peaks, with as few predictions as possible.
#include "forecast/fit.h"

#include <gtest/gtest.h>

#include "plan/model_flops.h"
#include "topology/rank_grid.h"
#include "forecast/fit_case.h"

namespace metroplex::test::fit_test {
namespace {

using forecast::fit;
using forecast::Fit;
using forecast::FitRequest;

TEST(Fit, OneRankNeedsItsPeakAndFitsInExactlyThat) {
  FitRequest request = fit_request(1);
  const int64_t peak = forecast::predict_memory({request.config, 1, 0, kFitVocab, 0}).peak;
  request.domains = machine(1, peak);
  EXPECT_EQ(fit(request).need, peak);
  EXPECT_TRUE(fit(request).fits());
  request.domains.bytes = peak - 1;
  EXPECT_FALSE(fit(request).fits());
  request.domains.bytes.reset();
  EXPECT_TRUE(fit(request).fits()) << "what is not known refuses nothing";
}

TEST(Fit, AMachineNeedsWhatAllItsRanksHold) {
  for (const char* strategy : {"no_shard", "optim"}) {
    const FitRequest request =
        fit_request(8,
                    {"parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2",
                     std::string("parallel.data_parallel_sharding_strategy=") + strategy},
                    machine(8, 1));
    int64_t sum = 0;
    for (int rank = 0; rank < 8; ++rank)
      sum += forecast::predict_memory({request.config, 8, rank, kFitVocab, 0}).peak;
    EXPECT_EQ(fit(request).need, sum) << strategy;  // both of two ranks that share state are predicted
    EXPECT_EQ(fit(request).domain_ranks, 8);
  }
}

// Peaks by hand: 100 on the first pp rank, 30 on the second, and 1 more on the last of each four that share state.
TEST(Fit, TheFullestOfManyPlacesCounts) {
  const std::vector<std::string> settings{"parallel.pipeline_model_parallel_size=2",
                                          "parallel.data_parallel_sharding_strategy=optim"};
  const Planted planted{[](const forecast::RankRequest& request) {
    const topology::RankGrid grid(request.world_size, request.config.parallel);
    const auto at = grid.coordinates(request.rank);
    return (at.pp == 0 ? 100 : 30) + (at.dp == 3 ? 1 : 0);
  }};
  FitRequest request = fit_request(8, settings, gpus(1000));
  EXPECT_EQ(fit(request, planted).need, 101);
  EXPECT_EQ(fit(request, planted).worst_rank().rank, 3);
  request.domains = machine(2, 1000);  // ranks 0 1, 2 3, 4 5, 6 7: the second domain has the last of the four
  EXPECT_EQ(fit(request, planted).need, 201);
  EXPECT_EQ(fit(request, planted).domain, 1);
  request.domains = machine(3, 1000);  // 0 1 2, 3 4 5, 6 7
  EXPECT_EQ(fit(request, planted).need, 300);
  request.domains = machine(8, 1000);
  EXPECT_EQ(fit(request, planted).need, 4 * 130 + 2);
  request.domains = machine(2, 1000);
  request.domains.only = 6;
  EXPECT_EQ(fit(request, planted).need, 61);
  EXPECT_EQ(fit(request, planted).ranks.size(), 2u) << "nothing is requested of the other pp rank";
}

// The last of sixteen that share state holds 40 less than the first. With so many, ranks in between are not predicted
// and count as the smaller of the two.
TEST(Fit, ALastRankMayHoldLessThanTheFirst) {
  const Planted planted{[](const forecast::RankRequest& request) {
    const topology::RankGrid grid(request.world_size, request.config.parallel);
    return grid.coordinates(request.rank).dp == 15 ? 60 : 100;
  }};
  FitRequest request = fit_request(
      16, {"parallel.data_parallel_sharding_strategy=optim", "train.global_batch_size=64"}, machine(16, 2000));
  const Fit all = fit(request, planted);
  EXPECT_EQ(all.need, 100 + 15 * 60);
  EXPECT_EQ(all.worst_rank().rank, 0);
  request.domains = machine(2, 1000);  // 0 1, 2 3
  EXPECT_EQ(fit(request, planted).need, 160);
  EXPECT_EQ(fit(request, planted).domain, 0);
  request.domains = gpus(1000);
  EXPECT_EQ(fit(request, planted).need, 100);
  EXPECT_EQ(fit(request, planted).domain, 0);
}

// With few ranks each is predicted, and the one that holds most is reported: the third of six.
TEST(Fit, ARankInBetweenMayHoldMost) {
  const Planted planted{[](const forecast::RankRequest& request) {
    const topology::RankGrid grid(request.world_size, request.config.parallel);
    return 100 + 10 * (grid.coordinates(request.rank).dp % 3);
  }};
  const FitRequest request = fit_request(
      6, {"parallel.data_parallel_sharding_strategy=optim", "train.global_batch_size=24"}, machine(6, 1000));
  const Fit all = fit(request, planted);
  EXPECT_EQ(all.need, 2 * (100 + 110 + 120));
  EXPECT_EQ(all.worst_rank().rank, 5) << "the last holds as much as the third";
  const Planted third{[](const forecast::RankRequest& asked) { return asked.rank == 2 ? 130 : 100; }};
  const Fit odd = fit(request, third);
  EXPECT_EQ(odd.need, 630);
  EXPECT_EQ(odd.worst_rank().rank, 2);
  EXPECT_EQ(odd.ranks.size(), 3U);
}

// Small parameters, padded to 64 elements each, give a rank in between more than either end.
TEST(Fit, TheMostOfAllRanksIsThatOfTheRanks) {
  for (const int ranks : {4, 6, 8}) {
    const FitRequest request =
        fit_request(ranks,
                    {"parallel.data_parallel_sharding_strategy=optim_grads", "parallel.ddp_bucket_size=1000",
                     "train.global_batch_size=96", "optim.optimizer_cpu_offload=true"},
                    machine(ranks, 1));
    int64_t most = 0;
    for (int rank = 0; rank < ranks; ++rank)
      most = std::max(most, forecast::predict_memory({request.config, ranks, rank, kFitVocab, 0}).peak);
    EXPECT_EQ(fit(request).worst_rank().peak, most) << ranks;
  }
}

TEST(Fit, HostMemoryDoesNotCountOnAGpu) {
  FitRequest request = fit_request(1, {"optim.optimizer_cpu_offload=true"}, machine(1, 1 << 30));
  const Fit on_cpu = fit(request);
  EXPECT_EQ(on_cpu.need, on_cpu.worst_rank().prediction.memory.peak);
  request.domains = gpus(1 << 30);
  const Fit on_gpu = fit(request);
  const replay::MemoryPrediction& predicted = on_gpu.worst_rank().prediction.memory;
  EXPECT_GT(predicted.use.host, 0);
  EXPECT_EQ(on_gpu.need, predicted.peak - predicted.use.host);
}

TEST(Fit, ManyRanksCostNoMorePredictionsThanPipelineRanks) {
  int calls = 0;
  const Planted planted{[](const forecast::RankRequest&) { return 1; }, &calls};
  FitRequest request = fit_request(16384,
                                   {"parallel.tensor_model_parallel_size=4",
                                    "parallel.pipeline_model_parallel_size=8", "train.global_batch_size=65536"},
                                   gpus(1000));
  fit(request, planted);
  EXPECT_EQ(calls, 8);
  calls = 0;
  request.config.parallel.data_parallel_sharding_strategy = config::ShardingStrategy::optim;
  fit(request, planted);
  EXPECT_EQ(calls, 16);
}

TEST(Fit, TheLargestStepOfABatchScheduleCounts) {
  const FitRequest request =
      fit_request(2, {"train.rampup_batch_size=8 8 1000", "train.train_iters=0", "train.train_samples=6400"},
                  machine(2, 1 << 30));
  EXPECT_EQ(forecast::max_microbatches(request.config, 2), 8);
  const FitRequest falling = fit_request(
      2, {"train.step_batch_size_schedule=0:64 320:16", "train.global_batch_size=0"}, machine(2, 1 << 30));
  EXPECT_EQ(forecast::max_microbatches(falling.config, 2), 8) << "the first step is the largest";
}

TEST(Fit, ThePartOfAMachineThatIsLeftCounts) {
  const Planted planted{[](const forecast::RankRequest& request) { return request.rank == 3 ? 500 : 100; }};
  const FitRequest request = fit_request(4, {"parallel.pipeline_model_parallel_size=4"}, machine(3, 1000));
  EXPECT_EQ(fit(request, planted).need, 500);
  EXPECT_EQ(fit(request, planted).domain, 1);
}

// Each of two instances of the optimizer shards its state over two ranks: two predictions are enough for all four.
TEST(Fit, RanksOfAnInstanceShareItsState) {
  int calls = 0;
  const Planted planted{[](const forecast::RankRequest& request) { return request.rank % 2 == 1 ? 130 : 100; },
                        &calls};
  const FitRequest request = fit_request(
      4, {"parallel.data_parallel_sharding_strategy=optim", "parallel.num_distributed_optimizer_instances=2"},
      machine(4, 1000));
  EXPECT_EQ(fit(request, planted).need, 2 * (100 + 130));
  EXPECT_EQ(calls, 2);
}

// Two operations per multiply-add, three for forward and backward: by the formula of the iteration line.
TEST(PredictRank, OperationsOfAllRanksAreThoseOfTheModel) {
  const std::vector<std::vector<std::string>> models{
      {},
      {"model.experimental_attention_variant=gated_delta_net", "model.linear_attention_freq=2"},
      {"model.mtp_num_layers=2", "model.position_embedding_type=rope"},
      {"model.mtp_num_layers=1", "model.position_embedding_type=rope",
       "parallel.pipeline_model_parallel_layout=Ettt|ttt|ttm|L"},
      {"model.num_layers=4", "model.hybrid_layer_pattern=MM*-", "model.mamba_num_groups=2"}};
  for (const std::vector<std::string>& model : models) {
    std::vector<std::string> settings{"parallel.tensor_model_parallel_size=2",
                                      "parallel.pipeline_model_parallel_size=2"};
    settings.insert(settings.end(), model.begin(), model.end());
    const FitRequest request = fit_request(8, settings);
    double sum = 0;
    for (int rank = 0; rank < 8; ++rank)
      sum += forecast::predict_rank({request.config, 8, rank, kFitVocab, 0}).model_flops;
    const int64_t padded = config::padded_vocab_size(kFitVocab, 128, 2);
    const double whole = plan::step_flops(plan::model_shape(request.config, padded), {.batch_size = 64});
    // At most 32 of the same products in another order: 32 * 1.1e-16.
    EXPECT_NEAR(sum / whole, 1, 1e-14) << (model.empty() ? "" : model[0]);
  }
}

}  // namespace
}  // namespace metroplex::test::fit_test

// Rows of experts that are sent in 8 bits (model.moe_dispatch_fwd_dtype, moe_combine_bwd_dtype): the same result on
// every layout and with every dispatcher, and the bytes of the exchanges. Rows are equal on all layouts except for
// the rounding of float64 sums; low_precision_ranks_test.cpp estimates how seldom that changes a code.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "comm/backends/counting.h"
#include "config/load.h"
#include "run/low_precision_models.h"
#include "run/run_layouts.h"
#include "run/support.h"
#include "support/poisoned.h"

namespace metroplex::run::row_formats_ranks_test {
namespace {

using Settings = std::vector<std::string>;

const std::string kDispatch = "model.moe_dispatch_fwd_dtype=mxfp8", kCombine = "model.moe_combine_bwd_dtype=mxfp8",
                  kTp2 = "parallel.tensor_model_parallel_size=2", kSp = "parallel.sequence_parallel=true",
                  kPp2 = "parallel.pipeline_model_parallel_size=2", kEp2 = "parallel.expert_model_parallel_size=2",
                  kEp4 = "parallel.expert_model_parallel_size=4", kEtp2 = "parallel.expert_tensor_parallel_size=2",
                  kEtp1 = "parallel.expert_tensor_parallel_size=1";
const Settings kStaticBuffer{"model.moe_token_dispatcher_type=static_buffer",
                             "model.moe_expert_rank_capacity_factor=1"};

Settings join(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::string dispatcher(const std::string& type) { return "model.moe_token_dispatcher_type=" + type; }

void expect_equal(const std::vector<std::pair<Settings, int64_t>>& layouts, const Settings& more) {
  std::map<int64_t, verify::LayoutRun> references;
  for (const auto& [layout, ranks] : layouts) {
    const Settings settings = join(join({kDispatch, kCombine}, more), layout);
    SCOPED_TRACE(testing::PrintToString(settings));
    expect_equals_single_rank(for_ranks(config::parse(kExperts, settings), ranks), ranks, references);
  }
}

TEST(RowFormats, AnyLayoutEqualsOneRank) {
  expect_equal({{{kEp2}, 2},
                {{kEp4, dispatcher("allgather")}, 4},
                {{kEp4, dispatcher("hierarchical"), "parallel.expert_ranks_per_node=2"}, 4},
                {join(kStaticBuffer, {kEp2}), 2},
                {{kTp2, kSp, kEp2, kEtp1}, 2},
                {{kTp2, kSp, kEp2, kEtp2, kPp2}, 8},
                {{kTp2, kSp, kEp2, kEtp2, dispatcher("allgather")}, 4},
                {{kEp2, "model.moe_enable_echo=true", "model.moe_num_echo_experts=2"}, 2},
                {{dispatcher("alltoall")}, 1},
                {{dispatcher("allgather")}, 1},
                {kStaticBuffer, 1}},
               {});
  expect_equal({{{kEp2, kPp2, "parallel.pipeline_schedule=zb_h1"}, 4}}, {"model.moe_latent_size=32"});
}

// Losses of three steps in bf16.
std::vector<double> train(const Settings& settings, int64_t ranks,
                          const std::shared_ptr<comm::Traffic>& traffic = {}) {
  const config::Config config = config::resolved(
      config::parse(kExperts,
                    join({"precision.params_dtype=bf16", "train.train_iters=10", "data.mock_data=true"}, settings)),
      ranks);
  std::vector<double> losses;
  comm::ThreadsOptions options;
  options.traffic = traffic;
  comm::run_threads(static_cast<int>(ranks), topology::RankGrid(static_cast<int>(ranks), config.parallel), options,
                    [&](const comm::World& world) {
                      const auto assembly = step::assemble(config, world, kVocab);
                      for (int64_t step = 0; step < kSteps; ++step) {
                        const double loss = test::step_at(*assembly, step).loss;
                        if (world.rank() == 0) losses.push_back(loss);
                      }
                    });
  return losses;
}

TEST(RowFormats, BuffersAndGraphsChangeNoBit) {
  const test::NanFillGuard poisoned;
  const Settings formats{kDispatch, kCombine, kEp2};
  const std::vector<double> want = train(formats, 2);
  EXPECT_NE(train({kEp2}, 2), want);
  const Settings buffers = join(formats, kStaticBuffer);
  EXPECT_EQ(train(buffers, 2), want);
  EXPECT_EQ(train(join(buffers, {"train.cuda_graph_impl=full_iteration", "train.cuda_graph_warmup_steps=1"}), 2),
            want);
  EXPECT_EQ(train(join(formats, {"memory.recompute_granularity=selective", "memory.recompute_modules=[moe]"}), 2),
            want);
}

// Bytes of the dispatchers' exchanges, over all ranks.
int64_t exchanged(const Settings& settings, const std::string& operation) {
  const auto traffic = std::make_shared<comm::Traffic>();
  train(settings, 2, traffic);
  return traffic->of("etp-ep", operation).bytes;
}

// A row has 2 width bytes in bf16, and 33 / 32 width bytes as codes: 33 / 64 of it.
TEST(RowFormats, HalveTheBytes) {
  // Rows of all microbatches of three steps, in two layers: tokens of a step, times the experts of a token.
  constexpr int64_t kWidth = 64, kTokens = 8 * 64, kTopk = 2, kRows = kSteps * 2 * kTokens * kTopk,
                    kBf16 = kRows * kWidth * 2;
  const int64_t plain = exchanged({kEp2}, "all_to_all");
  EXPECT_EQ(plain - exchanged({kEp2, kDispatch}, "all_to_all"), kBf16 - kBf16 * 33 / 64);
  EXPECT_EQ(plain - exchanged({kEp2, kCombine}, "all_to_all"), kBf16 - kBf16 * 33 / 64);
  // Four exchanges of rows, and two of their probabilities in fp32.
  EXPECT_EQ(plain, 4 * kBf16 + 2 * kRows * 4);
  // Buffers of fixed size have as many rows for each of the two ranks as for both.
  const auto buffers = [](const Settings& more) {
    return exchanged(join(join({kEp2}, kStaticBuffer), more), "exchange_rows");
  };
  EXPECT_EQ(buffers({}) - buffers({kDispatch}), 2 * (kBf16 - kBf16 * 33 / 64));
  EXPECT_EQ(buffers({}) - buffers({kCombine}), 2 * (kBf16 - kBf16 * 33 / 64));
  // Each of the two ranks receives every token twice in forward and twice in backward.
  const std::string all = dispatcher("allgather");
  constexpr int64_t kGathered = kSteps * 2 * 2 * kTokens * kWidth * 2;
  EXPECT_EQ(exchanged({kEp2, all}, "all_gather") - exchanged({kEp2, all, kDispatch, kCombine}, "all_gather"),
            2 * (kGathered - kGathered * 33 / 64));
}

}  // namespace
}  // namespace metroplex::run::row_formats_ranks_test

// Rounded weights that are kept for a step (precision.keep_rounded_weights): the same bits as rounding for every use,
// with one rounding per weight and step.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "config/load.h"
#include "nn/rounded_weight.h"
#include "run/low_precision_models.h"
#include "run/support.h"

namespace metroplex::run::rounded_weights_ranks_test {
namespace {

using Settings = std::vector<std::string>;

constexpr int64_t kSteps = 4, kVocab = 50;

config::Config make_config(const std::string& yaml, Settings settings, int64_t ranks, bool keeps) {
  settings.insert(settings.begin(), {"train.train_iters=10", "data.mock_data=true", "precision.params_dtype=bf16"});
  if (!keeps) settings.emplace_back("precision.keep_rounded_weights=false");
  const config::Config config = config::parse(yaml, settings);
  config::check(config, ranks);
  return config::resolved(config, ranks);
}

void run_ranks(const config::Config& config, int64_t ranks, const comm::RankBody& body) {
  test::run_sharded(config, {.dp = ranks}, body);
}

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> state;
};

// Steps with an evaluation after each, whose weights are those of the next step.
Outcome train(const config::Config& config, int64_t ranks) {
  Outcome outcome;
  run_ranks(config, ranks, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    Outcome mine;
    for (int64_t step = 0; step < kSteps; ++step) {
      const step::StepOutcome result = test::step_at(*assembly, step);
      std::vector<nn::Microbatch> batches = test::make_sharded_batches(*assembly, step);
      for (nn::Microbatch& batch : batches) batch.training = false;
      const at::NoGradGuard no_grad;
      const step::LossSum sum = step::evaluate_step(*assembly, batches, false);
      mine.losses.insert(mine.losses.end(), {result.loss, sum.loss});
      mine.norms.push_back(result.grad_norm);
    }
    mine.state = test::whole_state(*assembly);
    if (world.rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

void expect_same(const std::string& yaml, const Settings& settings, int64_t ranks) {
  SCOPED_TRACE(testing::PrintToString(settings));
  const Outcome kept = train(make_config(yaml, settings, ranks, true), ranks),
                rounded = train(make_config(yaml, settings, ranks, false), ranks);
  EXPECT_EQ(kept.losses, rounded.losses);
  EXPECT_EQ(kept.norms, rounded.norms);
  EXPECT_NE(kept.losses.front(), kept.losses.back());
  test::expect_equal_state(kept.state, rounded.state);
}

Settings join(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

Settings recipe(const std::string& name) {
  if (name == "nvfp4") return {"precision.fp4_format=e2m1"};
  return {"precision.fp8_format=hybrid", "precision.fp8_recipe=" + name};
}

const std::string kTp2 = "parallel.tensor_model_parallel_size=2", kSp = "parallel.sequence_parallel=true",
                  kPp2 = "parallel.pipeline_model_parallel_size=2", kEp2 = "parallel.expert_model_parallel_size=2",
                  kInterleaved = "parallel.virtual_pipeline_model_parallel_size=2";
const Settings kFullRecompute = {"memory.recompute_granularity=full", "memory.recompute_method=uniform",
                                 "memory.recompute_num_layers=1"};

std::string zero(const std::string& strategy) { return "parallel.data_parallel_sharding_strategy=" + strategy; }

TEST(RoundedWeights, EqualRoundingForEveryUse) {
  for (const char* const name : {"delayed", "tensorwise", "blockwise", "mxfp8", "nvfp4"})
    expect_same(kWide, join(recipe(name), {kTp2, kSp}), 2);
  expect_same(kDense, join(recipe("nvfp4"), {"precision.fp4_square_weights=false"}), 1);
  expect_same(kDense, join(recipe("tensorwise"), {"precision.fp8_output_proj=true"}), 1);
  expect_same(kDense,
              join(recipe("delayed"), {"precision.fp8_output_proj=true", "model.mtp_num_layers=1",
                                       "model.position_embedding_type=rope"}),
              1);
  for (const char* const name : {"delayed", "tensorwise", "blockwise", "mxfp8"})
    for (const std::string* const yaml : {&kDense, &kExperts})
      expect_same(*yaml, join(recipe(name), {"precision.fp8_products=library"}), 1);
  const Settings codes = join(recipe("nvfp4"), {"precision.fp8_products=library"});
  expect_same(kWide, join(codes, {kTp2, kSp}), 2);
  expect_same(kWide, join(codes, {"precision.fp4_square_weights=false"}), 1);
}

TEST(RoundedWeights, EqualRoundingOnAnySchedule) {
  expect_same(kDense, join(recipe("mxfp8"), {kPp2, kInterleaved, kTp2, kSp}), 4);
  expect_same(kDense, join(recipe("delayed"), {kPp2, "parallel.pipeline_schedule=zb_h1", zero("optim")}), 4);
  expect_same(kDense, join(join(recipe("tensorwise"), {zero("optim_grads")}), kFullRecompute), 2);
  expect_same(kDense, join(recipe("mxfp8"), {zero("optim_grads_params")}), 2);
  expect_same(kExperts, join(recipe("mxfp8"), {kEp2, zero("optim")}), 4);
  expect_same(kExperts, join(recipe("delayed"), {"model.moe_grouped_gemm=false"}), 1);
}

TEST(RoundedWeights, EqualRoundingInGraphs) {
  for (const char* const impl : {"full_iteration", "local"}) {
    const Settings graphs{std::string("train.cuda_graph_impl=") + impl, "train.cuda_graph_warmup_steps=1"};
    for (const char* const name : {"delayed", "mxfp8"})
      expect_same(kDense, join(join(recipe(name), {kPp2, zero("optim")}), graphs), 2);
  }
}

// With delayed scales, a frozen weight is rounded with the scale of each step.
TEST(RoundedWeights, EqualRoundingOfFrozenWeights) {
  for (const char* const name : {"delayed", "mxfp8"}) {
    const Settings adapters = join(recipe(name), {"peft.lora_rank=4"});
    expect_same(kDense, join(adapters, {kTp2}), 2);
    expect_same(kDense, join(adapters, {"train.cuda_graph_impl=full_iteration", "train.cuda_graph_warmup_steps=1"}),
                1);
    expect_same(kDense, join(adapters, {"peft.base_format=fp8"}), 1);
  }
}

// Counts launches of the rounding kernel.
class RoundingCounter final : public device::Recorder {
 public:
  void run(device::Operation operation) override {
    count += operation.name == "round_blocks" ? 1 : 0;
    operation.run();
  }
  int64_t count = 0;
};

// Launches in the second of two steps.
int64_t count_roundings(const Settings& settings, bool keeps) {
  const config::Config config = make_config(kDense, settings, 1, keeps);
  int64_t count = 0;
  run_ranks(config, 1, [&](const comm::World& world) {
    RoundingCounter counter;
    const comm::World watched = world.recorded(counter);
    const auto assembly = step::assemble(config, watched, kVocab);
    test::step_at(*assembly, 0);
    counter.count = 0;
    test::step_at(*assembly, 1);
    count = counter.count;
  });
  return count;
}

// A linear layer has three products of two operands, two of which are its weight.
TEST(RoundedWeights, RoundsOncePerStep) {
  constexpr int64_t kLinear = 16, kMicrobatches = 4, kOthers = 4;
  for (const char* const name : {"delayed", "tensorwise", "mxfp8"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(count_roundings(recipe(name), false), kLinear * kMicrobatches * (kOthers + 2));
    const int64_t weights = std::string(name) == "mxfp8" ? 2 : 1;
    EXPECT_EQ(count_roundings(recipe(name), true), kLinear * (kMicrobatches * kOthers + weights));
  }
  // A recomputed forward rounds its input again.
  EXPECT_EQ(count_roundings(join(recipe("mxfp8"), kFullRecompute), true),
            kLinear * (kMicrobatches * (kOthers + 1) + 2));
}

// Weight gradients of frozen weights are not computed.
TEST(RoundedWeights, RoundsFrozenWeightsOnce) {
  constexpr int64_t kLinear = 16, kMicrobatches = 4, kOthers = 2;
  const Settings adapters{"peft.lora_rank=4"};
  EXPECT_EQ(count_roundings(join(recipe("mxfp8"), adapters), true), kLinear * kMicrobatches * kOthers);
  EXPECT_EQ(count_roundings(join(recipe("delayed"), adapters), true), kLinear * (kMicrobatches * kOthers + 1));
}

// Bytes of the kept values on one rank. Linear layers of kDense have 4 x (256 x 128 + 3 x 128 x 128) values.
int64_t count_kept_bytes(const Settings& settings, int64_t ranks = 1, const std::string& yaml = kDense) {
  std::array<int64_t, 2> bytes{};
  for (const bool keeps : {false, true}) {
    run_ranks(make_config(yaml, settings, ranks, keeps), ranks, [&](const comm::World& world) {
      const auto assembly = step::assemble(make_config(yaml, settings, ranks, keeps), world, kVocab);
      if (world.rank() == 0) bytes[keeps ? 1 : 0] = assembly->model.values_bytes();
    });
  }
  return bytes[1] - bytes[0];
}

TEST(RoundedWeights, CountTheirMemory) {
  constexpr int64_t kValues = int64_t{4} * (256 * 128 + 3 * 128 * 128);
  EXPECT_EQ(count_kept_bytes(recipe("delayed")), kValues * 4);    // fp32
  EXPECT_EQ(count_kept_bytes(recipe("blockwise")), kValues * 2);  // bf16
  EXPECT_EQ(count_kept_bytes(recipe("mxfp8")), kValues * 2 * 2);  // bf16, in blocks along both dimensions
  const auto codes = [](const char* name) {
    return count_kept_bytes(join(recipe(name), {"precision.fp8_products=library"}));
  };
  // Codes for both products: those of input gradients are transposed.
  EXPECT_EQ(codes("delayed"), 2 * (kValues + 16 * 4));
  EXPECT_EQ(codes("blockwise"), 2 * (kValues + kValues / (128 * 128) * 4));
  EXPECT_EQ(codes("mxfp8"), 2 * (kValues + kValues / 32 * 4));
  EXPECT_EQ(codes("nvfp4"), 2 * (kValues / 2 + kValues / (16 * 16) + 16 * 4));
  EXPECT_EQ(count_kept_bytes(join(recipe("delayed"), {zero("optim_grads_params")}), 2), 0);
  // Experts: 2 layers of 4 experts with two weights of 64 x 64. Codes in bf16, and their factors.
  const auto experts = [](const char* grouped) {
    return count_kept_bytes(join(recipe("delayed"), {std::string("model.moe_grouped_gemm=") + grouped}), 1, kExperts);
  };
  EXPECT_EQ(experts("false") - experts("true"), 2 * 4 * 2 * (64 * 64 * (4 - 2) - 4));
}

TEST(RoundedWeights, FrozenWeightsAreMeasured) {
  const config::Config config = make_config(kDense, join(recipe("mxfp8"), {"peft.lora_rank=4"}), 1, true);
  run_ranks(config, 1, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    test::step_at(*assembly, 0);
    nn::RoundingMeter& meter = *assembly->model.rounding_meter;
    meter.start();
    test::step_at(*assembly, 1);
    const at::Tensor weights = meter.figures().select(1, static_cast<int64_t>(nn::Operand::weight));
    EXPECT_TRUE(weights.ne(0).any(1).all().item<bool>());
  });
}

TEST(RoundedWeights, LoadedWeightsAreRoundedAgain) {
  const config::Config config = make_config(kDense, join(recipe("mxfp8"), {"peft.lora_rank=4"}), 1, true);
  run_ranks(config, 1, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    test::step_at(*assembly, 0);
    for (nn::Param* param : assembly->model.params)
      if (param->frozen && param->rounded) param->data.zero_();
    assembly->model.families.loaded();
    test::step_at(*assembly, 1);
    for (const nn::Param* param : assembly->model.params)
      if (param->frozen && param->rounded) { EXPECT_EQ(param->rounded->columns.count_nonzero().item<int64_t>(), 0); }
  });
}

}  // namespace
}  // namespace metroplex::run::rounded_weights_ranks_test

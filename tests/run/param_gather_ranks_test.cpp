// Weights gathered as 8-bit codes (precision.fp8_param_gather): the same bits as a gather in params_dtype, with fewer
// bytes.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "comm/backends/counting.h"
#include "config/load.h"
#include "nn/rounded_weight.h"
#include "run/low_precision_models.h"
#include "run/run_layouts.h"
#include "run/support.h"

namespace metroplex::run::param_gather_ranks_test {
namespace {

using Settings = std::vector<std::string>;

constexpr int64_t kSteps = 4, kVocab = 50;

Settings join(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

Settings recipe(const std::string& name) {
  return {"precision.fp8_format=hybrid", "precision.fp8_recipe=" + name, "precision.params_dtype=bf16"};
}

std::string zero(int stage) {
  static constexpr const char* kStages[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
  return std::string("parallel.data_parallel_sharding_strategy=") + kStages[stage];
}

config::Config make_config(const std::string& yaml, Settings settings, int64_t ranks, bool as_codes) {
  // Without clipping, no update depends on the gradient norm, whose sum has another order.
  settings.insert(settings.begin(), {"train.train_iters=10", "data.mock_data=true", "optim.clip_grad=0"});
  if (as_codes) settings.emplace_back("precision.fp8_param_gather=true");
  const config::Config config = config::parse(yaml, settings);
  config::check(config, ranks);
  return config::resolved(config, ranks);
}

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> state;
  int64_t gathered = 0;  // weights of rank 0 that are gathered as codes
};

double evaluate(step::Assembly& assembly, int64_t step) {
  std::vector<nn::Microbatch> batches = test::make_sharded_batches(assembly, step);
  for (nn::Microbatch& batch : batches) batch.training = false;
  const at::NoGradGuard no_grad;
  return step::evaluate_step(assembly, batches, false).loss;
}

// Steps with an evaluation after each, whose weights are those of the next step.
Outcome train(const config::Config& config, int64_t ranks) {
  Outcome outcome;
  test::run_sharded(config, {.dp = ranks}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    Outcome mine;
    for (int64_t step = 0; step < kSteps; ++step) {
      const step::StepOutcome result = test::step_at(*assembly, step);
      mine.losses.insert(mine.losses.end(), {result.loss, evaluate(*assembly, step)});
      mine.norms.push_back(result.grad_norm);
    }
    mine.state = test::whole_state(*assembly);
    for (const nn::Param* param : assembly->model.params)
      mine.gathered += param->rounded && param->rounded->shard ? 1 : 0;
    if (world.rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

void expect_same(const std::string& yaml, const Settings& settings, int64_t ranks) {
  SCOPED_TRACE(testing::PrintToString(settings));
  const Outcome codes = train(make_config(yaml, settings, ranks, true), ranks),
                values = train(make_config(yaml, settings, ranks, false), ranks);
  EXPECT_GT(codes.gathered, 0);
  EXPECT_EQ(values.gathered, 0);
  EXPECT_EQ(codes.losses, values.losses);
  // A sum of squares has about 100 summands: a tensor's shard on each rank. An addition rounds to 2^-53.
  for (size_t i = 0; i < codes.norms.size(); ++i)
    EXPECT_NEAR(codes.norms[i], values.norms[i], 100 * 0x1p-53 * values.norms[i]);
  EXPECT_NE(codes.losses.front(), codes.losses.back());
  test::expect_equal_state(codes.state, values.state);
}

const std::string kTp2 = "parallel.tensor_model_parallel_size=2", kSp = "parallel.sequence_parallel=true",
                  kPp2 = "parallel.pipeline_model_parallel_size=2", kEp2 = "parallel.expert_model_parallel_size=2",
                  kInterleaved = "parallel.virtual_pipeline_model_parallel_size=2",
                  kEveryUse = "precision.keep_rounded_weights=false", kLibrary = "precision.fp8_products=library";

TEST(ParamGather, EqualsGatherOfValues) {
  for (const char* const name : {"delayed", "tensorwise", "blockwise"})
    for (const int stage : {1, 2, 3}) expect_same(kDense, join(recipe(name), {zero(stage)}), 2);
}

TEST(ParamGather, EqualsGatherOfValuesOnAnyLayout) {
  for (const char* const name : {"delayed", "tensorwise"}) {
    expect_same(kWide, join(recipe(name), {kTp2, kSp, zero(1)}), 4);
    expect_same(kDense, join(recipe(name), {kPp2, kInterleaved, zero(1), "parallel.align_param_gather=true"}), 4);
    expect_same(kExperts, join(recipe(name), {kEp2, zero(1)}), 4);
    // The second of 4 shards begins with the last expert of fc2. The third ends inside an expert of fc1, which is
    // twice as large.
    expect_same(kExperts, join(recipe(name), {zero(1), "model.gated_linear_unit=true", "model.num_layers=1"}), 4);
    expect_same(kExperts, join(recipe(name), {kEp2, "parallel.expert_tensor_parallel_size=2", kTp2, kSp, zero(3)}),
                8);
  }
  // Shards end inside blocks.
  expect_same(kWide, join(recipe("blockwise"), {kTp2, kSp, zero(1), "model.num_layers=3"}), 8);
  expect_same(kExperts, join(recipe("blockwise"), {zero(3)}), 2);
  const Settings whole_blocks{"model.hidden_size=128", "model.ffn_hidden_size=128", "model.num_layers=1",
                              "model.gated_linear_unit=true", "train.micro_batch_size=1"};
  for (const int stage : {1, 3})
    expect_same(kExperts, join(join(recipe("blockwise"), whole_blocks), {zero(stage), kEp2}), 8);
  expect_same(kWide,
              join(recipe("blockwise"), {kTp2, kSp, zero(1), "precision.recipe_pattern=linear_fc2=tensorwise"}), 4);
  expect_same(kDense, join(recipe("tensorwise"), {zero(1), "parallel.overlap_param_gather=false"}), 2);
  expect_same(kDense, join(recipe("tensorwise"), {zero(1), "parallel.num_distributed_optimizer_instances=2"}), 4);
  expect_same(kDense, join(recipe("tensorwise"), {"parallel.context_parallel_size=2", zero(2)}), 2);
}

TEST(ParamGather, EqualsGatherOfValuesInAnyProduct) {
  for (const char* const name : {"delayed", "tensorwise", "blockwise"}) {
    for (const int stage : {1, 3}) expect_same(kDense, join(recipe(name), {zero(stage), kLibrary}), 2);
    expect_same(kDense, join(recipe(name), {zero(1), kEveryUse}), 2);
    expect_same(kDense, join(recipe(name), {zero(1), kEveryUse, kLibrary}), 2);
  }
  for (const char* const format : {"e4m3", "hybrid"}) {
    const Settings experts = join(recipe("tensorwise"), {std::string("precision.fp8_format=") + format, kLibrary});
    for (const int stage : {1, 3}) expect_same(kExperts, join(experts, {zero(stage)}), 2);
    expect_same(kExperts, join(experts, {zero(1), kEveryUse}), 2);
  }
  expect_same(kDense, join(recipe("tensorwise"), {zero(1), "precision.fp8_output_proj=true"}), 2);
  expect_same(kDense, join(recipe("mxfp8"), {zero(1), "precision.recipe_pattern=linear_fc2=tensorwise"}), 2);
  expect_same(kDense,
              join(recipe("tensorwise"), {zero(1), "precision.first_last_layers_bf16=true",
                                          "precision.recipe_pattern=layers.1.mlp.*=delayed"}),
              2);
  expect_same(kExperts, join(recipe("delayed"), {zero(1), "model.moe_grouped_gemm=false"}), 2);
  for (const char* const dtype : {"fp32", "fp64", "fp16"})
    expect_same(kDense,
                join(recipe("tensorwise"),
                     {zero(1), std::string("precision.params_dtype=") + dtype, "precision.initial_loss_scale=256"}),
                2);
}

// In float64, with gradients that are clipped in every step: losses, norms and parameters. Adam with this epsilon is
// nearly linear in the gradient, so a factor that is too large by one half changes parameters.
TEST(ParamGather, EqualsOneRankWithClipping) {
  for (const char* const name : {"delayed", "tensorwise"}) {
    std::map<int64_t, verify::LayoutRun> references;
    config::Config config;
    for (const int stage : {1, 3}) {
      const Settings settings = join(recipe(name), {kTp2, zero(stage), "optim.clip_grad=0.1", "optim.adam_eps=1.0e-3",
                                                    "precision.fp8_param_gather=true"});
      SCOPED_TRACE(testing::PrintToString(settings));
      config = for_ranks(config::parse(kDense, settings), 4);
      EXPECT_TRUE(config.precision.fp8_param_gather);
      expect_equals_single_rank(config, 4, references);
    }
    const verify::LayoutRun& reference = references.begin()->second;
    for (const double norm : reference.grad_norms) EXPECT_GT(norm, 0.2);
    config.optim.clip_grad = 0.15;
    EXPECT_GT(verify::compare_runs(run_layout_on(config, 4), reference).parameter,
              1000 * verify::kParameterTolerance);
  }
}

TEST(ParamGather, EqualsGatherOfValuesInGraphs) {
  const Settings graphs{"train.cuda_graph_impl=full_iteration", "train.cuda_graph_warmup_steps=1"};
  for (const char* const name : {"delayed", "tensorwise", "blockwise"}) {
    for (const int stage : {1, 3}) expect_same(kDense, join(join(recipe(name), {kPp2, zero(stage)}), graphs), 4);
    expect_same(kDense, join(recipe(name), {zero(1), "train.cuda_graph_impl=local", graphs[1]}), 2);
  }
}

// Bytes that all ranks receive in the second step's gathers of parameters, and in its all-reduces.
struct Bytes {
  int64_t gathered = 0, reduced = 0;
};

Bytes count_bytes(const Settings& settings, bool as_codes) {
  constexpr int kRanks = 2;
  const config::Config config = make_config(kDense, settings, kRanks, as_codes);
  const auto traffic = std::make_shared<comm::Traffic>();
  comm::ThreadsOptions options{std::chrono::seconds(60)};
  options.traffic = traffic;
  Bytes bytes;
  comm::run_threads(kRanks, topology::RankGrid(kRanks, config.parallel), options, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const auto finish = [&] {
      assembly->model.families.finish_gathers();
      comm::barrier(world.groups().world);
    };
    test::step_at(*assembly, 0);
    finish();
    if (world.rank() == 0) traffic->clear();
    comm::barrier(world.groups().world);
    test::step_at(*assembly, 1);
    finish();
    if (world.rank() == 0)
      bytes = {traffic->of("dp-cp", "all_gather").bytes, traffic->of("dp-cp", "all_reduce").bytes};
  });
  return {bytes.gathered / kRanks, bytes.reduced / kRanks};
}

// Linear layers of kDense have 4 x (256 x 128 + 3 x 128 x 128) values in 16 matrices and 20 blocks.
TEST(ParamGather, MovesOneBytePerWeight) {
  constexpr int64_t kValues = int64_t{4} * (256 * 128 + 3 * 128 * 128), kMatrices = 16, kBlocks = 20;
  for (const int stage : {1, 2, 3}) {
    // ZeRO-3 gathers in forward and in backward of 4 samples / (2 ranks x 2 samples) microbatches.
    const int64_t gathers = stage == 3 ? 4 : 1;
    for (const std::string name : {"delayed", "tensorwise", "blockwise"}) {
      const Settings settings = join(recipe(name), {zero(stage)});
      const Bytes codes = count_bytes(settings, true), values = count_bytes(settings, false);
      EXPECT_EQ(values.gathered - codes.gathered, gathers * kValues) << name << " ZeRO-" << stage;
      // Weights are a family of their own, with its own norm, zero count, and overflow count.
      constexpr int64_t kNumbers = 3 * 8;
      const int64_t magnitudes = name == "delayed" ? 0 : (name == "blockwise" ? kBlocks : kMatrices) * 4;
      EXPECT_EQ(codes.reduced - values.reduced, kNumbers + magnitudes) << name << " ZeRO-" << stage;
    }
  }
}

// Permanent memory of one of two ranks. Own values have 2 bytes, and codes have 1.
TEST(ParamGather, StoresOwnValuesOnly) {
  constexpr int64_t kValues = int64_t{4} * (256 * 128 + 3 * 128 * 128), kFactors = int64_t{16} * 2 * 4;
  const auto values_bytes = [](const Settings& settings, bool as_codes) {
    const config::Config config = make_config(kDense, settings, 2, as_codes);
    int64_t bytes = 0;
    test::run_sharded(config, {.dp = 2}, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      if (world.rank() == 0) bytes = assembly->model.values_bytes();
    });
    return bytes;
  };
  const auto difference = [&](const Settings& settings) {
    return values_bytes(settings, true) - values_bytes(settings, false);
  };
  const Settings tensorwise = recipe("tensorwise");
  EXPECT_EQ(difference(join(tensorwise, {zero(1)})), kValues + 2 * kValues / 2 - 2 * kValues + kFactors);
  EXPECT_EQ(difference(join(tensorwise, {zero(3)})), kValues / 2 + kFactors);
  EXPECT_EQ(difference(join(recipe("blockwise"), {zero(3)})), kValues / 2 + 20 * 2 * 4);
  // Products of codes read the gathered ones, which replace kept codes with 4 bytes for each factor.
  EXPECT_EQ(difference(join(tensorwise, {zero(1), kLibrary})), -kValues + kFactors - 16 * 4);
}

TEST(ParamGather, LoadedWeightsAreGatheredAgain) {
  const config::Config config = make_config(kDense, join(recipe("tensorwise"), {zero(1)}), 2, true);
  test::run_sharded(config, {.dp = 2}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    test::step_at(*assembly, 0);
    assembly->model.families.finish_gathers();
    for (const distributed::Shard& shard : assembly->model.slices)
      if (shard.param->rounded) shard.values.zero_();
    assembly->model.families.loaded();
    evaluate(*assembly, 1);
    for (const nn::Param* param : assembly->model.params)
      if (param->rounded) { EXPECT_EQ(param->rounded->columns.count_nonzero().item<int64_t>(), 0) << param->name; }
  });
}

// Frozen weights, which are gathered once, stay in params_dtype: DoRA reads their values.
TEST(ParamGather, FrozenWeightsAreGatheredAsValues) {
  const Settings freezing{zero(1), "train.freeze=*.linear_fc1.weight"};
  expect_same(kDense, join(recipe("delayed"), freezing), 2);
  const config::Config config = make_config(kDense, join(recipe("tensorwise"), freezing), 2, true);
  test::run_sharded(config, {.dp = 2}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    for (const nn::Param* param : assembly->model.params)
      if (param->frozen) { EXPECT_TRUE(param->data.defined()) << param->name; }
  });
}

// A block of 128 rows would contain rows of two experts, which have 64 rows each.
TEST(ParamGather, ExpertsWithoutWholeBlocksAreGatheredAsValues) {
  const config::Config config = make_config(kExperts, join(recipe("blockwise"), {zero(1)}), 2, true);
  test::run_sharded(config, {.dp = 2}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    int64_t stacks = 0;
    for (const nn::Param* param : assembly->model.params) {
      if (!param->rounded) continue;
      const bool is_stack = param->local_shape.size() == 3;
      EXPECT_EQ(param->rounded->shard.has_value(), !is_stack) << param->name;
      stacks += is_stack ? 1 : 0;
    }
    EXPECT_EQ(stacks, 4);
  });
}

TEST(ParamGather, WeightsAreMeasured) {
  const auto figures = [](const char* name, bool as_codes) {
    // The shards of the ranks meet inside a block.
    const config::Config config =
        make_config(kDense, join(recipe(name), {zero(1), "model.num_layers=3"}), 2, as_codes);
    at::Tensor sums;
    test::run_sharded(config, {.dp = 2}, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      test::step_at(*assembly, 0);
      nn::RoundingMeter& meter = *assembly->model.rounding_meter;
      meter.start();
      test::step_at(*assembly, 1);
      const at::Tensor mine = meter.figures().select(1, static_cast<int64_t>(nn::Operand::weight)).clone();
      comm::all_reduce(mine, world.groups().world);
      if (world.rank() == 0) sums = mine;
    });
    return sums;
  };
  // Without codes, each of the two ranks measures every element.
  for (const char* const name : {"tensorwise", "blockwise"}) {
    const at::Tensor codes = figures(name, true), values = figures(name, false);
    constexpr int64_t kCounts = 4;  // elements, not finite, saturated and flushed ones; then two sums of squares
    EXPECT_TRUE(codes.narrow(1, 0, kCounts).mul(2).equal(values.narrow(1, 0, kCounts))) << name << codes << values;
    // Two sums of up to 2 x 256 x 128 positive numbers.
    const double tolerance = 2.0 * 2 * 256 * 128 * 0x1p-53;
    EXPECT_TRUE(at::allclose(codes.narrow(1, kCounts, 2).mul(2), values.narrow(1, kCounts, 2), tolerance, 0)) << name;
  }
}

}  // namespace
}  // namespace metroplex::run::param_gather_ranks_test

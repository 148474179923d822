// Figures of rounded operands (step/rounding_figures.h): the same on every layout, in measured steps only, in the
// metrics file; and the first operand that is not finite.
#include "step/rounding_figures.h"

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "run/low_precision_models.h"
#include "run/run_layouts.h"
#include "run/support.h"
#include "run/traced_runs.h"

namespace metroplex::run::rounding_figures_ranks_test {
namespace {

using kernels::RoundingFigures;
using Layers = std::vector<step::LayerRounding>;

config::Config make_config(const std::string& yaml, const std::string& recipe, std::vector<std::string> keys,
                           int64_t ranks) {
  if (recipe == "nvfp4") keys.push_back("precision.fp4_format=e2m1");
  else keys.insert(keys.end(), {"precision.fp8_format=hybrid", "precision.fp8_recipe=" + recipe});
  return for_ranks(config::parse(yaml, keys), ranks);
}

void run_ranks(const config::Config& config, int64_t ranks, const comm::RankBody& body) {
  test::run_sharded(config, {.dp = ranks}, body);
}

// Two steps, of which only the second one is measured: it has the scales of the first one.
Layers measure(const config::Config& config, int64_t ranks) {
  Layers layers;
  run_ranks(config, ranks, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    test::step_at(*assembly, 0);
    assembly->model.rounding_meter->start();
    test::step_at(*assembly, 1);
    const Layers mine = step::reduce_rounding(assembly->process, assembly->model);
    if (world.rank() == 0) layers = mine;
  });
  return layers;
}

// Operands differ by d, the tolerance of parameters after a step, relative to their norm; codes are the same. A
// relative error therefore differs by at most 2 d, and a magnitude or factor by d of itself. Shares are quotients of
// integers below 2^53, so they are equal. `noise`: share of elements that are 0 but for the rounding of sums, and
// therefore flushed or not depending on the layout.
void expect_same(const RoundingFigures& got, const RoundingFigures& want, double noise) {
  constexpr double kOperand = verify::kParameterTolerance;
  EXPECT_GT(want.elements, 0);
  EXPECT_EQ(got.saturated / got.elements, want.saturated / want.elements);
  EXPECT_NEAR(got.flushed / got.elements, want.flushed / want.elements, noise);
  EXPECT_EQ(got.nonfinite, 0);
  EXPECT_NEAR(std::sqrt(got.squared_error / got.squares), std::sqrt(want.squared_error / want.squares), 2 * kOperand);
  EXPECT_NEAR(got.squares / got.elements, want.squares / want.elements, 2 * kOperand * want.squares / want.elements);
  EXPECT_NEAR(got.largest, want.largest, kOperand * want.largest);
  EXPECT_NEAR(got.decode, want.decode, kOperand * want.decode);
}

struct Layout {
  std::vector<std::string> keys;
  int64_t ranks;
};

void expect_equal(const std::string& yaml, const std::string& recipe, const std::vector<Layout>& layouts,
                  const std::vector<std::string>& more = {}) {
  const Layers want = measure(make_config(yaml, recipe, more, 1), 1);
  for (const Layout& layout : layouts) {
    std::vector<std::string> keys = more;
    keys.insert(keys.end(), layout.keys.begin(), layout.keys.end());
    SCOPED_TRACE(recipe + testing::PrintToString(keys));
    const Layers got = measure(make_config(yaml, recipe, keys, layout.ranks), layout.ranks);
    ASSERT_EQ(got.size(), want.size());
    for (size_t layer = 0; layer < want.size(); ++layer) {
      EXPECT_EQ(got[layer].module, want[layer].module);
      for (size_t i = 0; i < 3; ++i) {
        SCOPED_TRACE(want[layer].module + " " + step::kOperandNames[i]);
        // The first of 64 positions attends to itself only, so the gradient of its query is 0.
        const bool has_noise = i == 2 && want[layer].module.ends_with("linear_qkv");
        expect_same(got[layer].operands[i], want[layer].operands[i], has_noise ? 1.0 / 64 : 0);
      }
    }
  }
}

const std::string kTp2 = "parallel.tensor_model_parallel_size=2", kSp = "parallel.sequence_parallel=true",
                  kPp2 = "parallel.pipeline_model_parallel_size=2", kCp2 = "parallel.context_parallel_size=2",
                  kEtp2 = "parallel.expert_tensor_parallel_size=2", kEp2 = "parallel.expert_model_parallel_size=2",
                  kInterleaved = "parallel.virtual_pipeline_model_parallel_size=2";

TEST(RoundingFigures, DenseEqualOneRank) {
  for (const char* const recipe : {"delayed", "tensorwise", "mxfp8", "nvfp4"}) {
    expect_equal(
        kDense, recipe,
        {{{kTp2}, 2},
         {{kCp2}, 2},
         {{kTp2, kSp, kCp2}, 4},
         {{kTp2, kSp, kPp2, kInterleaved}, 4},
         {{kPp2, "parallel.pipeline_schedule=zb_h1", "parallel.data_parallel_sharding_strategy=optim_grads_params"},
          4}});
  }
  expect_equal(kWide, "blockwise", {{{kTp2, kSp}, 2}});
}

TEST(RoundingFigures, ExpertsEqualOneRank) {
  expect_equal(
      kExperts, "delayed",
      {{{kEp2}, 2}, {{kTp2, kSp, kEtp2}, 2}, {{kEp2, kTp2, kSp, kPp2, "parallel.expert_tensor_parallel_size=1"}, 4}});
  expect_equal(kExperts, "mxfp8", {{{kEp2}, 2}}, {"model.moe_router_force_even=true"});
  expect_equal(kExperts, "nvfp4", {{{kTp2, kSp, kEtp2}, 2}, {{kPp2, "parallel.pipeline_schedule=zb_h1"}, 4}},
               {"precision.fp4_stochastic_rounding=false"});
}

// Without saturation and a factor of the tensor, layouts would agree on 0.
TEST(RoundingFigures, Nvfp4SaturatesAndHasScale) {
  for (const step::LayerRounding& layer : measure(make_config(kDense, "nvfp4", {}, 1), 1)) {
    for (const RoundingFigures& operand : layer.operands) {
      EXPECT_GT(operand.saturated, 0) << layer.module;
      // Half of the factors are rounded down, and then mostly one of 16 values is too large: about 3%.
      EXPECT_LT(operand.saturated, 0.1 * operand.elements) << layer.module;
      // A factor of each microbatch's tensor; the weight is one tensor. Three divisions in fp64 round once each.
      EXPECT_NEAR(operand.decode, operand.largest / 2688, operand.decode * 4 * 0x1p-53) << layer.module;
    }
  }
}

// Replicas of an expert have some of its rows. Their weights are not counted again.
TEST(RoundingFigures, ReplicasEqualOneRank) {
  const std::vector<std::string> echo{kEp2, "model.moe_enable_echo=true", "model.moe_num_echo_experts=2",
                                      "model.moe_echo_enable_random_offloading=true"};
  expect_equal(kExperts, "mxfp8", {{echo, 2}}, {"precision.fp8_wgrad=false"});
}

// A recomputed forward is not measured twice: every operand of a layer then has as many elements.
TEST(RoundingFigures, RecomputationCountsOnce) {
  const auto elements = [](std::vector<std::string> keys) {
    std::vector<double> all;
    for (const step::LayerRounding& layer : measure(make_config(kExperts, "mxfp8", std::move(keys), 1), 1))
      for (const RoundingFigures& operand : layer.operands) all.push_back(operand.elements);
    return all;
  };
  const std::vector<double> plain = elements({});
  EXPECT_EQ(elements({"memory.recompute_granularity=full", "memory.recompute_method=uniform",
                      "memory.recompute_num_layers=1"}),
            plain);
}

// Modules are listed in the order of the model, also if a rank holds stages that are not adjacent.
TEST(RoundingFigures, ListsLayersInModelOrder) {
  std::vector<std::string> modules;
  const std::vector<std::string> keys{kPp2, kInterleaved};
  for (const step::LayerRounding& layer : measure(make_config(kDense, "mxfp8", keys, 2), 2))
    modules.push_back(layer.module);
  std::vector<std::string> want;
  for (const char* const layer : {"0", "1", "2", "3"}) {
    for (const char* const part :
         {"self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2"})
      want.push_back(std::string("decoder.layers.") + layer + "." + part);
  }
  EXPECT_EQ(modules, want);
}

// Returns the error of a step on this layout after `spoil`.
std::string failing_step(const Layout& layout, bool checks_loss,
                         const std::function<void(step::Assembly&, std::vector<nn::Microbatch>&)>& spoil) {
  config::Config config = make_config(kDense, "delayed", layout.keys, layout.ranks);
  config.train.check_for_nan_in_loss = checks_loss;
  try {
    run_ranks(config, layout.ranks, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      test::step_at(*assembly, 0);
      auto batches = test::make_sharded_batches(*assembly, 1);
      spoil(*assembly, batches);
      step::train_step(*assembly, {batches, 2, 8, false, {}});
    });
  } catch (const base::Error& error) { return error.what(); }
  return "";
}

void expect_words(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
}

// An infinite weight, found from the loss or from the gradients, on one rank and in the second stage of a pipeline.
TEST(RoundingFigures, NameInfiniteWeight) {
  const auto spoil = [](step::Assembly& assembly, auto&) {
    for (nn::Param* param : assembly.model.params) {
      if (param->name == "decoder.layers.2.mlp.linear_fc1.weight" && assembly.process.groups().tp.first())
        param->data[5][7] = std::numeric_limits<double>::infinity();
    }
  };
  const std::string operand =
      "; the first operand that is not finite is the weight of decoder.layers.2.mlp.linear_fc1 "
      "(precision.fp8_recipe = delayed); nothing was updated";
  const std::vector<Layout> layouts = {{{}, 1}, {{kTp2, kPp2}, 4}};
  for (const Layout& layout : layouts) {
    expect_words(failing_step(layout, true, spoil), {"the loss", "iteration 2", operand});
    expect_words(failing_step(layout, false, spoil), {"the gradient of", "iteration 2, microbatch 0", operand});
  }
}

// Finite weights and inputs, but a loss that is not: backward begins with the last layer.
TEST(RoundingFigures, NameFirstGradientOfBackward) {
  expect_words(failing_step({{}, 1}, true,
                            [](step::Assembly&, auto& batches) {
                              batches[1].loss_mask[0][0] = std::numeric_limits<double>::quiet_NaN();
                            }),
               {"the loss is nan", "iteration 2, microbatch 1",
                "is the gradient of decoder.layers.3.mlp.linear_fc2 (precision.fp8_recipe = delayed)"});
}

// Whole runs of four steps. The figures do not change a run, whose other steps replay graphs, and they are those of
// one step.
TEST(RoundingFigures, AreWrittenWhenDue) {
  const auto train = [](int64_t interval, const char* graphs) {
    const test::Folder folder;
    test::TracedRun run{test::small_llama(), {1, 2, 1, 1, false}};
    run.config.train.train_iters = 4;
    run.config.train.cuda_graph_impl = config::Choice<config::CudaGraphImpl>(graphs);
    run.config.train.cuda_graph_warmup_steps = 0;
    run.config.train.log_rounding_interval = interval;
    run.config.train.metrics_file = folder.at("metrics.jsonl");
    run.config.precision.fp8_format = config::Choice<config::Fp8Format>("hybrid");
    run.config.precision.fp8_recipe = config::Choice<config::Fp8Recipe>("tensorwise");
    test::train(run);
    return test::read_results(run.config.train.metrics_file);
  };
  const auto plain = train(0, "none");
  ASSERT_EQ(plain.size(), 4u);
  for (const auto& step : plain) EXPECT_FALSE(step.contains("rounding"));
  const nlohmann::json last = train(4, "none").at(3).at("rounding");
  for (const char* const graphs : {"none", "full_iteration", "local"}) {
    auto steps = train(2, graphs);
    ASSERT_EQ(steps.size(), 4u);
    EXPECT_EQ(steps[3].at("rounding"), last) << graphs;
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(steps[i].contains("rounding"), i % 2 == 1) << graphs << " step " << i;
      const nlohmann::json rounding = steps[i].value("rounding", nlohmann::json());
      steps[i].erase("rounding");
      EXPECT_EQ(steps[i], plain[i]) << graphs;
      if (rounding.is_null()) continue;
      EXPECT_EQ(rounding.size(), 16u);  // four linear layers in each of four layers, on two stages
      const nlohmann::json weight = rounding.at("decoder.layers.3.mlp.linear_fc1").at("weight");
      EXPECT_EQ(weight.size(), 6u);
      // E4M3 has three fraction bits, so an error is at most 2^-4; uniform errors are a third of it or less.
      EXPECT_GT(weight.at("error").get<double>(), 0x1p-8);
      EXPECT_LT(weight.at("error").get<double>(), 0x1p-4);
      EXPECT_NEAR(weight.at("scale").get<double>() * weight.at("amax").get<double>(), 448, 448 * 0x1p-50);
      EXPECT_EQ(weight.at("nonfinite"), 0);
    }
  }
}

}  // namespace
}  // namespace metroplex::run::rounding_figures_ranks_test

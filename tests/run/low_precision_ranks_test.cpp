// Products in 8 bits on several layouts against one rank: three steps in float64 (run_layouts.h). The operands are
// equal on all layouts except for the rounding of float64 sums. A value next to a tie could then be rounded to
// another code; with 1e6 values and differences of 1e-15 of a code's distance of 2^-4, that is expected in one of 1e7
// runs. Blocks along the tokens are equal only if the rows of every rank are whole blocks, as in these models.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "config/load.h"
#include "run/low_precision_models.h"
#include "run/run_layouts.h"
#include "run/support.h"

namespace metroplex::run::low_precision_ranks_test {
namespace {

struct Layout {
  std::vector<std::string> keys;  // of section parallel
  int64_t ranks;
};

void expect_equal(const std::string& yaml, const std::string& recipe, const std::vector<Layout>& layouts,
                  const std::vector<std::string>& more = {}) {
  std::map<int64_t, verify::LayoutRun> references;
  for (const Layout& layout : layouts) {
    std::vector<std::string> keys{"precision.fp8_format=hybrid", "precision.fp8_recipe=" + recipe};
    if (recipe == "nvfp4") keys = {"precision.fp4_format=e2m1"};
    keys.insert(keys.end(), more.begin(), more.end());
    for (const std::string& key : layout.keys) keys.push_back("parallel." + key);
    SCOPED_TRACE(testing::PrintToString(keys));
    expect_equals_single_rank(for_ranks(config::parse(yaml, keys), layout.ranks), layout.ranks, references);
  }
}

const std::string kTp2 = "tensor_model_parallel_size=2", kSp = "sequence_parallel=true",
                  kPp2 = "pipeline_model_parallel_size=2", kCp2 = "context_parallel_size=2",
                  kEtp2 = "expert_tensor_parallel_size=2";

const std::vector<Layout> kLayouts = {
    {{kTp2}, 2},
    {{kTp2, kSp, kPp2}, 4},
    {{kCp2}, 2},
    {{kTp2, kSp, kCp2}, 4},
    {{kPp2, "pipeline_schedule=zb_h1", "data_parallel_sharding_strategy=optim"}, 4},
    {{kTp2, kSp, kPp2, "pipeline_schedule=zb_h2", "data_parallel_sharding_strategy=optim_grads_params"}, 8},
    {{"tensor_model_parallel_size=4"}, 4}};

TEST(LowPrecision, TensorwiseEqualsOneRank) { expect_equal(kDense, "tensorwise", kLayouts); }
TEST(LowPrecision, DelayedEqualsOneRank) { expect_equal(kDense, "delayed", kLayouts); }
TEST(LowPrecision, Mxfp8EqualsOneRank) { expect_equal(kDense, "mxfp8", kLayouts); }
TEST(LowPrecision, BlockwiseEqualsOneRank) {
  expect_equal(kWide, "blockwise", {{{kTp2}, 2}, {{kTp2, kSp, kPp2}, 4}, {{kPp2, "pipeline_schedule=zb_h1"}, 4}});
}

// Blocks of 16 tokens and the positions of gradients do not depend on the layout.
TEST(LowPrecision, Nvfp4EqualsOneRank) {
  expect_equal(kDense, "nvfp4", kLayouts);
  expect_equal(kDense, "nvfp4", {{{kTp2, kSp}, 2}},
               {"precision.fp4_square_weights=false", "precision.fp4_hadamard=false"});
}
// Latent attention has layers on every rank, which process that rank's tokens only.
TEST(LowPrecision, Nvfp4OfReplicatedLayersEqualsOneRank) {
  expect_equal(kDense, "nvfp4", {{{kTp2, kSp}, 2}, {{kTp2, kSp, kCp2}, 4}},
               {"model.multi_latent_attention=true", "model.q_lora_rank=32", "model.kv_lora_rank=32",
                "model.qk_head_dim=16", "model.qk_pos_emb_head_dim=16", "model.v_head_dim=16",
                "model.num_query_groups=8", "model.position_embedding_type=rope", "model.add_bias_linear=false"});
}
TEST(LowPrecision, RecipesByNameEqualOneRank) {
  expect_equal(kDense, "tensorwise", {{{kTp2, kSp, kPp2}, 4}},
               {"precision.recipe_pattern=[linear_qkv=mxfp8,layers.1.mlp.linear_fc2=nvfp4,linear_proj=none]",
                "precision.fp8_wgrad=false"});
}
TEST(LowPrecision, OutputLayerEqualsOneRank) {
  for (const char* const recipe : {"delayed", "tensorwise"})
    expect_equal(kDense, recipe, {{{kTp2}, 2}, {{kTp2, kSp, kPp2}, 4}}, {"precision.fp8_output_proj=true"});
}
// Both heads count in one history.
TEST(LowPrecision, OutputLayersOfPredictionEqualOneRank) {
  expect_equal(kDense, "delayed", {{{kTp2}, 2}, {{kTp2, kSp, kPp2}, 4}},
               {"precision.fp8_output_proj=true", "model.mtp_num_layers=1", "model.position_embedding_type=rope"});
}

// Experts: their blocks of rows contain the tokens of one rank.
TEST(LowPrecision, Mxfp8OfExpertsEqualsOneRank) {
  expect_equal(kExperts, "mxfp8",
               {{{"expert_model_parallel_size=2"}, 2},
                {{"expert_model_parallel_size=4"}, 4},
                {{kPp2, "expert_model_parallel_size=2", "pipeline_schedule=zb_h1"}, 4}},
               {"model.moe_router_force_even=true"});
}
// A factor of all rows of an expert: equal if a rank processes the rows of one microbatch, as one rank does.
TEST(LowPrecision, TensorwiseOfExpertsEqualsOneRank) {
  expect_equal(kExperts, "tensorwise", {{{kTp2, kSp, kEtp2}, 2}, {{kPp2, "pipeline_schedule=zb_h1"}, 4}});
}
// Rows of experts have no position in a sequence, so their random numbers depend on the layout.
TEST(LowPrecision, Nvfp4OfExpertsEqualsOneRank) {
  expect_equal(kExperts, "nvfp4", {{{kTp2, kSp, kEtp2}, 2}, {{kPp2, "pipeline_schedule=zb_h1"}, 4}},
               {"precision.fp4_stochastic_rounding=false"});
}
// The history of a step is the same however its rows are distributed.
TEST(LowPrecision, DelayedOfExpertsEqualsOneRank) {
  expect_equal(kExperts, "delayed",
               {{{kTp2, kSp, kEtp2}, 2},
                {{"expert_model_parallel_size=2"}, 2},
                {{"expert_model_parallel_size=4", kTp2, kSp, "expert_tensor_parallel_size=1"}, 4},
                {{"expert_model_parallel_size=2", kTp2, kSp, kEtp2}, 4},
                {{kPp2, kCp2, "expert_model_parallel_size=2", "data_parallel_sharding_strategy=optim_grads"}, 8}});
}

// The scales of frozen layers follow their operands, too.
TEST(LowPrecision, FrozenLayersUpdateTheirScales) {
  const std::vector<std::string> keys{"precision.fp8_format=hybrid", "train.trainable=*layers.3.*"};
  const config::Config config = for_ranks(config::parse(kDense, keys), 1);
  comm::run_threads(1, topology::RankGrid(1, config.parallel), {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    ASSERT_EQ(assembly->model.buffers.size(), 16u);  // four linear layers in each of four layers
    test::step_at(*assembly, 0);
    for (const nn::Buffer* buffer : assembly->model.buffers)
      EXPECT_GT(buffer->data.select(0, 0).select(0, 0).item<double>(), 0) << buffer->name;
  });
}

TEST(LowPrecision, OutputLayerIsRounded) {
  const config::Config config =
      for_ranks(config::parse(kDense, {"precision.fp8_format=hybrid", "precision.fp8_output_proj=true",
                                       "precision.recipe_pattern=[output_layer=delayed,.*=tensorwise]"}),
                1);
  comm::run_threads(1, topology::RankGrid(1, config.parallel), {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    ASSERT_EQ(assembly->model.buffers.size(), 1u);
    test::step_at(*assembly, 0);
    const nn::Buffer& history = *assembly->model.buffers[0];
    EXPECT_EQ(history.name, "output_layer.operand_magnitudes");
    EXPECT_TRUE(history.data.select(0, 0).gt(0).all().item<bool>());  // input, weight and gradient
  });
}

// Gradients in half precision: of dense layers and of experts, in one product or expert by expert.
TEST(LowPrecision, HalfGradientsAreThoseOfFp32) {
  const std::string fp8 = "precision.fp8_format=hybrid";
  const auto gradients = [](std::vector<std::string> keys, const std::vector<std::string>& more) {
    keys.insert(keys.end(), {"precision.params_dtype=bf16", "train.global_batch_size=2", "train.train_iters=3"});
    keys.insert(keys.end(), more.begin(), more.end());
    const config::Config config = config::resolved(config::parse(kExperts, keys), 1);
    std::map<std::string, at::Tensor> all;
    comm::run_threads(1, topology::RankGrid(1, config.parallel), {}, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      const auto batches = verify::synthetic_batches(config, world, kVocab, 0, at::kFloat);
      step::StepInput input{batches, 1, 0, false, {}};
      input.on_gradients = [&](double) {
        for (const nn::Param* param : assembly->model.params) all[param->name] = param->main_grad.to(at::kDouble);
      };
      step::train_step(*assembly, input);
    });
    return all;
  };
  using Keys = std::vector<std::string>;
  for (const Keys& recipe : {Keys{fp8, "precision.fp8_recipe=mxfp8"}, Keys{fp8, "precision.fp8_recipe=tensorwise"},
                             Keys{"precision.fp4_format=e2m1"}}) {
    const std::string half_key = "precision.main_grads_dtype=params";
    const auto wide = gradients(recipe, {}), half = gradients(recipe, {half_key}),
               single = gradients(recipe, {half_key, "model.moe_grouped_gemm=false"});
    for (const auto& [name, gradient] : wide) {
      // One microbatch: half gradients of products are rounded once, by 2^-8 of their size.
      if (name.find(".linear_") == std::string::npos) continue;
      const at::Tensor bound = gradient.abs().mul(0x1p-8);
      EXPECT_LE((half.at(name) - gradient).abs().sub(bound).max().item<double>(), 0) << name;
      if (recipe.back() == "precision.fp8_recipe=tensorwise") continue;  // expert by expert, operands are fp32
      EXPECT_LE((single.at(name) - gradient).abs().sub(bound).max().item<double>(), 0) << name;
    }
  }
}

// Loss and gradients of linear weights in one step, by rank.
struct StepBits {
  std::map<int, double> losses;
  std::map<std::string, at::Tensor> gradients;
};
StepBits run_step(std::vector<std::string> keys, int64_t ranks) {
  keys.insert(keys.end(), {"precision.params_dtype=bf16", "precision.fp8_products=library", "train.train_iters=3"});
  const config::Config config = config::resolved(config::parse(kDense, keys), ranks);
  StepBits bits;
  std::mutex mutex;
  comm::run_threads(ranks, topology::RankGrid(ranks, config.parallel), {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const auto batches = verify::synthetic_batches(config, world, kVocab, 0, at::kFloat);
    step::StepInput input{batches, 1, 0, false, {}};
    std::map<std::string, at::Tensor> mine;
    input.on_gradients = [&](double) {
      for (const nn::Param* param : assembly->model.params)
        if (param->name.find(".linear_") != std::string::npos && param->name.ends_with(".weight"))
          mine[base::concat(world.rank(), ' ', param->name)] = param->main_grad.clone();
    };
    const double loss = step::train_step(*assembly, input).loss;
    const std::lock_guard lock(mutex);
    bits.losses[world.rank()] = loss;
    bits.gradients.merge(mine);
  });
  return bits;
}

// The same codes are multiplied whether rows are gathered as codes, with sequence parallelism, or each rank encodes
// all rows, without. Sums over two ranks have the same bits.
TEST(LowPrecision, CodesOfRowsAreGathered) {
  using Keys = std::vector<std::string>;
  const std::string fp8 = "precision.fp8_format=hybrid";
  const Keys recipes[] = {{fp8, "precision.fp8_recipe=delayed"},
                          {fp8, "precision.fp8_recipe=tensorwise"},
                          {fp8, "precision.fp8_recipe=mxfp8"},
                          {"precision.fp4_format=e2m1"},
                          {fp8, "precision.fp8_recipe=tensorwise", "precision.fp8_wgrad=false"},
                          {fp8, "precision.fp8_recipe=tensorwise", "memory.recompute_granularity=full",
                           "memory.recompute_method=uniform", "memory.recompute_num_layers=1"},
                          {fp8, "precision.fp8_recipe=tensorwise", "precision.keep_rounded_weights=false"},
                          {fp8, "precision.fp8_recipe=tensorwise", "parallel.pipeline_model_parallel_size=2",
                           "parallel.pipeline_schedule=zb_h1"}};
  for (Keys keys : recipes) {
    SCOPED_TRACE(testing::PrintToString(keys));
    const int64_t ranks = keys.back().ends_with("zb_h1") ? 4 : 2;
    keys.push_back("parallel." + kTp2);
    const StepBits whole = run_step(keys, ranks);
    keys.push_back("parallel." + kSp);
    const StepBits split = run_step(keys, ranks);
    EXPECT_EQ(split.losses, whole.losses);
    ASSERT_EQ(split.gradients.size(), whole.gradients.size());
    ASSERT_EQ(whole.gradients.size(), static_cast<size_t>(4 * 4 * 2));  // layers, weights, tp
    for (const auto& [name, gradient] : whole.gradients)
      EXPECT_TRUE(split.gradients.at(name).equal(gradient)) << name;
  }
}

TEST(LowPrecision, FirstAndLastLayersStayUnrounded) {
  const std::vector<std::string> keys{"precision.fp8_format=hybrid", "precision.first_last_layers_bf16=true",
                                      "precision.num_layers_at_end_in_bf16=2"};
  const config::Config config = for_ranks(config::parse(kDense, keys), 1);
  comm::run_threads(1, topology::RankGrid(1, config.parallel), {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    ASSERT_EQ(assembly->model.buffers.size(), 4u);
    for (const nn::Buffer* buffer : assembly->model.buffers)
      EXPECT_NE(buffer->name.find("layers.1."), std::string::npos) << buffer->name;
  });
}

}  // namespace
}  // namespace metroplex::run::low_precision_ranks_test

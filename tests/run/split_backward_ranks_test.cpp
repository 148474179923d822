// Weight gradients as separate actions of the schedule: same gradients of whole models, with the same bits if the
// order of additions is the same.
#include <gtest/gtest.h>

#include "support/split_backward.h"
#include "step/step.h"
#include "run/legs.h"

namespace metroplex::test::split_backward_ranks_test {
namespace {

config::Config model(const std::string& yaml) {
  return with_small_settings(
      "model: {num_layers: 4, hidden_size: 16, num_attention_heads: 4, num_query_groups: 2, ffn_hidden_size: 24,"
      " vocab_size: 50, make_vocab_size_divisible_by: 8, hidden_dropout: 0.1, attention_dropout: 0.1,"
      " init_method_std: 0.2, " +
      yaml + "}\n");
}

enum class Weights { in_backward, behind_it, at_the_end };

std::vector<at::Tensor> compute_gradients(const config::Config& config, const comm::World& world, Weights weights) {
  const auto assembly = step::assemble(config, world, kVocab);
  const auto batches = make_batches(*assembly, 0);
  const auto count = static_cast<int>(batches.size());
  plan::PipelineTable table = assembly->model.table(assembly->process.config.parallel, count, false);
  if (weights != Weights::in_backward) table = split_backward(std::move(table), weights == Weights::at_the_end);
  assembly->model.families.begin_step(count);
  const at::Tensor factors = at::arange(1, count + 1, at::kDouble).reciprocal();
  assembly->model.executor->run(
      {table, batches, factors, step::border_shape(assembly->process, assembly->model, batches[0])});
  EXPECT_EQ(assembly->model.executor->num_live(), 0U);
  step::finish_gradients(assembly->process, assembly->model, assembly->optimization);
  std::vector<at::Tensor> gradients;
  for (const distributed::Shard& slice : assembly->model.slices) gradients.push_back(slice.gradient.clone());
  return gradients;
}

void check(const std::string& yaml, const TestLayout& layout, const char* sharding, const std::string& memory = "") {
  SCOPED_TRACE(yaml + " pp " + std::to_string(layout.pp) + " " + sharding + " " + memory);
  config::Config config = model(yaml);
  if (!memory.empty()) config.memory = config::parse(memory).memory;
  config.parallel.data_parallel_sharding_strategy = sharding;
  config = cut(config, layout);
  run_sharded(config, layout, [&](const comm::World& world) {
    const auto wanted = compute_gradients(config, world, Weights::in_backward);
    const auto behind = compute_gradients(config, world, Weights::behind_it);
    const auto later = compute_gradients(config, world, Weights::at_the_end);
    ASSERT_EQ(behind.size(), wanted.size());
    double largest = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_TRUE(behind[i].equal(wanted[i])) << i;
      if (wanted[i].numel() == 0) continue;
      const double scale = wanted[i].abs().max().item<double>();
      largest = std::max(largest, scale);
      // Sums of some hundred tokens in another order.
      EXPECT_LE((later[i] - wanted[i]).abs().max().item<double>(), 1e-13 * std::max(scale, 1.0)) << i;
    }
    EXPECT_GT(largest, 1e-3);
  });
}

constexpr const char* kGpt = "family: gpt, add_qkv_bias: true";
constexpr const char* kLlama =
    "family: llama, normalization: RMSNorm, gated_linear_unit: true, activation: silu, add_bias_linear: false,"
    " position_embedding_type: rope, untie_embeddings_and_output_weights: true, qk_layernorm: true";
constexpr const char* kExperts =
    "family: gpt, normalization: RMSNorm, num_moe_experts: 4, moe_router_topk: 2, moe_aux_loss_coeff: \"0.02\","
    " moe_z_loss_coeff: 0.001, moe_shared_expert_intermediate_size: 8, add_bias_linear: false";

TEST(SplitBackward, GivesTheGradientsOfAWholeBackward) {
  check(kGpt, {.tp = 2, .pp = 2, .sp = true}, "no_shard");
  check(kLlama, {.pp = 2, .vpp = 2, .dp = 2}, "optim_grads");
  check(kExperts, {.pp = 2, .dp = 2}, "optim_grads_params");
}

TEST(SplitBackward, OfWhatIsRecomputedToo) {
  check(kGpt, {.pp = 2}, "no_shard",
        "memory: {recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}");
  check(kExperts, {}, "no_shard",
        "memory: {recompute_granularity: selective, recompute_modules: [core_attn, mlp, layernorm, moe_act]}");
}

}  // namespace
}  // namespace metroplex::test::split_backward_ranks_test

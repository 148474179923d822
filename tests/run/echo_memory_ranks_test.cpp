// Memory of expert replicas on a rank, equal to the prediction to the byte. Weights are held from forward to
// backward, or not at all if they are fetched again; backward adds their gradients.
#include "device/memory_meter.h"
#include "pipeline/stage.h"
#include "support/without_onednn.h"
#include "run/memory_watch.h"
#include "run/memory_yaml.h"
#include "run/support.h"

namespace metroplex::test::echo_memory_ranks_test {
namespace {

constexpr int64_t kHidden = 32, kInner = 48, kExperts = 4, kEp = 2;

// Buffers that fit all rows for any routing.
config::Config make_config(int64_t layers, int64_t slots, bool again, const char* type = "fp32") {
  return config::parse(base::concat(
      "model: {family: gpt, num_layers: ", layers, ", hidden_size: ", kHidden, ", num_attention_heads: 4,",
      " ffn_hidden_size: ", kInner, ", vocab_size: 50, make_vocab_size_divisible_by: 8, add_bias_linear: false,",
      " num_moe_experts: ", kExperts, ", moe_router_topk: 1, moe_router_pre_softmax: true,",
      " moe_token_dispatcher_type: static_buffer, moe_expert_rank_capacity_factor: 2,",
      slots > 0 ? base::concat(" moe_enable_echo: true, moe_num_echo_experts: ", slots * kEp, ",",
                               " moe_echo_planner: exact,", again ? " moe_echo_recompute_expert_dispatch: true," : "")
                : std::string(),
      " moe_router_force_skew: 1.5}\n", "parallel: {expert_model_parallel_size: ", kEp, "}\n",
      "train: {seq_length: 16, micro_batch_size: 2, global_batch_size: 8, train_iters: 10}\n",
      "precision: {params_dtype: ", type, "}\n", "data: {mock_data: true}\n"));
}

// On rank 0, between forward and backward of a microbatch.
int64_t held_bytes(const config::Config& asked) {
  const WithoutOneDnn without;
  const TestLayout two{.dp = 2};
  const config::Config config = cut(asked, two);
  int64_t held = 0;
  run_sharded(config, two, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const nn::Microbatch batch = make_batch(config.train, world.rank(), 0);
    const device::MemoryMeter meter;
    pipeline::StageRun run;
    const nn::Values out = assembly->model.stages[0]->forward({}, batch, &run);
    if (world.rank() == 0) held = meter.bytes();
    comm::barrier(world.groups().world);
  });
  return held;
}
int64_t measure_layer(int64_t slots, bool again) {
  return held_bytes(make_config(2, slots, again)) - held_bytes(make_config(1, slots, again));
}

TEST(EchoMemoryRanks, AClonesWeightsAreHeldUntilBackwardOrFetchedAgain) {
  // Per replica slot: the owner on every rank, and its row count.
  const int64_t expert = 2 * kHidden * kInner * 4, integers = 4 * kEp + 8;
  const int64_t none = measure_layer(0, false);
  for (const int64_t slots : {1, 2}) {
    EXPECT_EQ(measure_layer(slots, false) - none, slots * (expert + integers));
    EXPECT_EQ(measure_layer(slots, true) - none, slots * integers);
  }
}

TEST(EchoMemoryRanks, WholeStepsHoldWhatTheirTraceSays) {
  const WithoutOneDnn without;
  for (const char* type : {"fp32", "bf16", "fp64"}) {
    for (const bool again : {false, true}) {
      SCOPED_TRACE(base::concat(type, again ? ", fetched again" : ""));
      const TestLayout two{.dp = 2};
      const config::Config config = cut(make_config(2, 2, again, type), two);
      run_sharded(config, two, [&](const comm::World& world) { expect_predicted_memory(config, kVocab, world); });
    }
  }
}

}  // namespace
}  // namespace metroplex::test::echo_memory_ranks_test

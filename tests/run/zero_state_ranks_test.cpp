// Checkpoints of every ZeRO stage, precision and optimizer state load into each other, and on the same layout a run
// goes on bit for bit.
#include "base/error.h"
#include "run/legs.h"

namespace metroplex::test::zero_state_ranks_test {
namespace {

constexpr const char* kStrategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

config::Config with_stage(config::Config config, int stage, int64_t instances = 1) {
  config.parallel.data_parallel_sharding_strategy = kStrategies[stage];
  config.parallel.num_distributed_optimizer_instances = instances;
  return config;
}

void expect_something(const State& state) {
  for (const auto& [name, tensor] : state)
    EXPECT_GT(tensor.abs().max().item<double>(), 0.0) << name << " is nothing: the comparison would be empty";
}

// ZeRO-1 at dp 4, ZeRO-3 at dp 2 x tp 2, none at one rank, ZeRO-2 in two instances.
void sweep_stages(const config::Config& config) {
  const Folder folder;
  const TestLayout dp4{1, 1, 1, 4, false}, dp2tp2{2, 1, 1, 2, true}, pp2{1, 2, 2, 2, false};
  const State first = run_leg(with_stage(config, 1), {dp4, "", folder.at("a"), 0, 2}).state;
  expect_something(first);
  expect_equal_state(run_leg(with_stage(config, 3), {dp2tp2, folder.at("a"), folder.at("b"), 2, 2}).state, first);
  expect_equal_state(run_leg(config, {{}, folder.at("b"), folder.at("c"), 2, 2}).state, first);
  expect_equal_state(run_leg(with_stage(config, 2, 2), {dp4, folder.at("c"), folder.at("d"), 2, 2}).state, first);
  expect_equal_state(run_leg(with_stage(config, 3), {pp2, folder.at("d"), folder.at("e"), 2, 2}).state, first);
  const Outcome there = run_leg(with_stage(config, 1), {dp4, folder.at("a"), "", 2, 4});
  const Outcome here = run_leg(config, {{}, folder.at("e"), "", 2, 4});
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(here.losses[i], there.losses[i], 1e-12 * there.losses[i]);
}

TEST(ZeroState, OfATiedGptWandersOverStagesUnchanged) { sweep_stages(small_gpt()); }
TEST(ZeroState, OfALlamaWithQkNormWandersOverStagesUnchanged) {
  config::Config config = small_llama();
  config.model.qk_layernorm = true;
  sweep_stages(config);
}

config::Config bf16(config::Config config) {
  config.precision.params_dtype = "bf16";
  config.model.attention_dropout = config.model.hidden_dropout = 0;
  return config;
}

TEST(ZeroState, OnTheSameLayoutEveryStageAndPrecisionGoesOnBitForBit) {
  const TestLayout layout{2, 1, 1, 4, true};
  std::vector<config::Config> configs{bf16(small_llama()), bf16(small_llama()), bf16(small_gpt()), small_gpt()};
  configs[1].optim.store_param_remainders = true;
  configs[1].optim.exp_avg_dtype = configs[1].optim.exp_avg_sq_dtype = "8bit";
  configs[2].optim.exp_avg_dtype = "bf16";
  configs[3].precision.params_dtype = "fp16";
  configs[3].precision.initial_loss_scale = 1 << 30;  // some steps overflow first
  for (size_t c = 0; c < configs.size(); ++c) {
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(base::concat("configuration ", c, " ZeRO ", stage));
      const Folder folder;
      const config::Config config = with_stage(configs[c], stage);
      const Outcome straight = run_leg(config, {layout, "", "", 0, 4});
      run_leg(config, {layout, "", folder.at("ckpt"), 0, 2});
      const Outcome resumed = run_leg(config, {layout, folder.at("ckpt"), "", 2, 4});
      expect_equal_state(resumed.state, straight.state);
      EXPECT_EQ(resumed.losses, std::vector<double>(straight.losses.begin() + 2, straight.losses.end()));
    }
  }
}

// Rounding noise is chosen by an element's position in its parameter, not in the shard that a rank updates. The sum
// of two gradients is the same in any order.
TEST(ZeroState, StochasticMomentsEqualUnshardedOnes) {
  config::Config config = bf16(small_llama());
  config.optim.exp_avg_dtype = config.optim.exp_avg_sq_dtype = "bf16";
  const TestLayout dp2{1, 1, 1, 2, false};
  const State expected = run_leg(config, {dp2, "", "", 0, 3}).state;
  expect_equal_state(run_leg(with_stage(config, 1), {dp2, "", "", 0, 3}).state, expected);
}

// The start of such a run gathers what the first stage drew; what is loaded next must not be overtaken by it.
TEST(ZeroState, ATiedModelOfShardedInitialisationGoesOnFromWhatWasLoaded) {
  for (const TestLayout& layout : {TestLayout{1, 1, 1, 2, false}, TestLayout{1, 2, 1, 2, false}}) {
    for (const int stage : {1, 2}) {
      SCOPED_TRACE(base::concat("ZeRO ", stage, " pp ", layout.pp));
      const Folder folder;
      config::Config config = with_stage(small_gpt(), stage);
      config.model.sharded_initialization = true;
      config.optim.lr_warmup_iters = 0;
      ASSERT_TRUE(config.parallel.overlap_param_gather);
      const Outcome straight = run_leg(config, {layout, "", "", 0, 4});
      run_leg(config, {layout, "", folder.at("ckpt"), 0, 2});
      const Outcome resumed = run_leg(config, {layout, folder.at("ckpt"), "", 2, 4});
      expect_equal_state(resumed.state, straight.state);
      EXPECT_EQ(resumed.losses, std::vector<double>(straight.losses.begin() + 2, straight.losses.end()));
    }
  }
}

// Main parameters kept as fp32 and as bf16 parameter with remainder are the same numbers.
TEST(ZeroState, MainParametersAndRemaindersLoadIntoEachOther) {
  const Folder folder;
  const TestLayout dp4{1, 1, 1, 4, false}, dp2tp2{2, 1, 1, 2, true};
  const config::Config plain = bf16(small_llama());
  config::Config split = plain;
  split.optim.store_param_remainders = true;
  const State first = run_leg(with_stage(plain, 1), {dp4, "", folder.at("a"), 0, 3}).state;
  EXPECT_TRUE(first.count("embedding.word_embeddings.weight main"));
  const State second = run_leg(with_stage(split, 3), {dp2tp2, folder.at("a"), folder.at("b"), 3, 3}).state;
  const State third = run_leg(plain, {{}, folder.at("b"), "", 3, 3}).state;
  expect_equal_state(third, first);
  for (const auto& [name, tensor] : first) {
    if (!name.ends_with(" main")) continue;
    EXPECT_TRUE(at::equal(second.at(name), tensor)) << name;
  }
}

// An fp32 run takes the main parameters of a bf16 run, and a bf16 run starts its own from an fp32 run's weights.
TEST(ZeroState, PrecisionsLoadIntoEachOther) {
  const Folder folder;
  config::Config narrow = bf16(small_llama()), wide = narrow;
  wide.precision.params_dtype = "fp32";
  const State in_bf16 = run_leg(narrow, {{}, "", folder.at("a"), 0, 3}).state;
  const State in_fp32 = run_leg(wide, {{}, folder.at("a"), folder.at("b"), 3, 3}).state;
  const State again = run_leg(narrow, {{}, folder.at("b"), "", 3, 3}).state;
  const std::string name = "decoder.layers.1.mlp.linear_fc1.weight";
  EXPECT_TRUE(at::equal(in_fp32.at(name), in_bf16.at(name + " main")));
  expect_equal_state(again, in_bf16);
}

}  // namespace
}  // namespace metroplex::test::zero_state_ranks_test

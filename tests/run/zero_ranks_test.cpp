// Sharding state, gradients and parameters over data-parallel ranks changes nothing. Every ZeRO stage on every kind
// of layout equals one rank in float64. The stages have equal bits if they add in the same order.
#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "support/everyday.h"
#include "run/support.h"
#include "verify/verify.h"

namespace metroplex::test::zero_ranks_test {
namespace {

using verify::LayoutRun;

constexpr const char* kStrategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

struct Sharded {
  TestLayout cut;
  int stage = 0;
  int64_t instances = 1;
  config::Memory memory = {};
};

config::Config sharded(config::Config config, const Sharded& how) {
  config.parallel.data_parallel_sharding_strategy = kStrategies[how.stage];
  config.parallel.num_distributed_optimizer_instances = how.instances;
  config.memory = how.memory;
  return cut(config, how.cut);
}

std::string words(const Sharded& how) {
  return base::concat("ZeRO ", how.stage, " tp ", how.cut.tp, " pp ", how.cut.pp, " vpp ", how.cut.vpp, " dp ",
                      how.cut.dp, " sp ", how.cut.sp, " instances ", how.instances, " recompute ",
                      how.memory.recompute_granularity, how.memory.recompute_method, " offload ",
                      how.memory.offload_activations);
}

LayoutRun run(const config::Config& config, const TestLayout& layout, int steps = 3) {
  LayoutRun result;
  run_sharded(config, layout, [&](const comm::World& world) {
    LayoutRun mine = verify::run_layout(config, world, kVocab, steps);
    if (world.rank() == 0) result = std::move(mine);
  });
  return result;
}

void expect_equal_to_one_rank(const config::Config& base, const std::vector<Sharded>& all) {
  const config::Config checked = verify::verification_config(base, 3);
  const LayoutRun reference = run(cut(checked, {}), {});
  for (const Sharded& how : all) {
    SCOPED_TRACE(words(how));
    const auto difference = verify::compare_runs(run(sharded(checked, how), how.cut), reference);
    EXPECT_LE(difference.loss, verify::kLossTolerance);
    EXPECT_LE(difference.grad_norm, verify::kGradNormTolerance);
    EXPECT_LE(difference.parameter, verify::kParameterTolerance) << difference.parameter_name;
  }
}

std::vector<Sharded> every_layout() {
  std::vector<Sharded> all;
  for (int stage = 1; stage <= 3; ++stage) {
    for (const int64_t dp : {2, 4, 8}) {
      for (const int64_t tp : {1, 2, 4}) {
        for (const int64_t pp : {1, 2, 4}) {
          if (dp * tp * pp > 8) continue;
          all.push_back({{tp, pp, 1, dp, tp == 2}, stage, dp >= 4 ? 2 : 1});
          if (pp == 2) all.push_back({{tp, pp, 2, dp, false}, stage, 1});
        }
      }
    }
    all.push_back({{1, 1, 1, 1, false}, stage, 1});
    all.push_back({{2, 2, 1, 1, true}, stage, 1});
  }
  return all;
}

// Three and five data-parallel ranks, which do not divide a bucket of a power of two evenly, and three pipeline
// stages of two chunks each. Includes stage 0, and every number of optimizer copies that divides dp. 30 microbatches
// of 6 layers.
std::vector<Sharded> odd_layouts() {
  std::vector<Sharded> all;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const TestLayout& layout :
         {TestLayout{1, 1, 1, 3, false}, TestLayout{1, 1, 1, 5, false}, TestLayout{2, 1, 1, 3, true},
          TestLayout{1, 2, 1, 3, false}, TestLayout{1, 3, 2, 1, false}, TestLayout{1, 3, 2, 2, false},
          TestLayout{2, 3, 2, 1, true}})
      all.push_back({layout, stage, 1});
    if (stage == 0) continue;
    for (const int64_t instances : {2, 3, 6}) all.push_back({{1, 1, 1, 6, false}, stage, instances});
    for (const int64_t instances : {3, 5}) all.push_back({{1, 1, 1, instances, false}, stage, instances});
  }
  return all;
}

config::Config six_layers(config::Config config) {
  config.model.num_layers = 6;
  config.train.global_batch_size = 30;
  return config;
}

TEST(Zero, EveryStageOnOddLayoutsEqualsOneRank) {
  expect_equal_to_one_rank(six_layers(small_gpt()), sample_cases(odd_layouts(), 2));
}

TEST(Zero, ACodegeexOnOddLayoutsEqualsOneRank) {
  config::Config config = six_layers(small_gpt());
  config.model.family = "codegeex";
  std::vector<Sharded> all = odd_layouts();
  std::erase_if(all, [](const Sharded& how) { return how.instances > 1 || how.stage == 2; });
  expect_equal_to_one_rank(config, sample_cases(all, 2));
}

TEST(Zero, EveryStageOfATiedGptEqualsOneRank) { expect_equal_to_one_rank(small_gpt(), every_layout()); }

TEST(Zero, EveryStageOfALlamaEqualsOneRank) {
  config::Config config = small_llama();
  config.model.untie_embeddings_and_output_weights = true;
  config.model.qk_layernorm = true;
  config.model.num_query_groups = 4;
  expect_equal_to_one_rank(config, every_layout());
}

TEST(Zero, WithAPerTokenLossAndWithoutOverlapEqualsOneRank) {
  config::Config config = small_gpt();
  config.train.calculate_per_token_loss = true;
  config.parallel.overlap_grad_reduce = config.parallel.overlap_param_gather = false;
  expect_equal_to_one_rank(config, {{{1, 1, 1, 4, false}, 1, 1},
                                    {{1, 2, 1, 2, false}, 2, 1},
                                    {{2, 1, 1, 2, true}, 3, 1},
                                    {{1, 1, 1, 4, false}, 3, 2}});
}

std::vector<config::Memory> memory_forms() {
  std::vector<config::Memory> forms(5);
  forms[0].recompute_granularity = "full";
  forms[0].recompute_method = "uniform";
  forms[0].recompute_num_layers = 2;
  forms[1] = forms[0];
  forms[1].recompute_method = "block";
  forms[1].recompute_num_layers = 1;
  forms[1].offload_activations = "file";
  forms[2].recompute_granularity = "selective";
  forms[2].recompute_modules = {"core_attn", "mlp", "layernorm", "activation"};
  forms[3].offload_activations = "file";
  forms[4] = forms[0];
  forms[4].recompute_num_layers = 1;
  forms[4].distribute_saved_activations = true;
  return forms;
}

TEST(Zero, EveryStageOnEveryLayoutWithRecomputeAndOffloadEqualsOneRank) {
  std::vector<Sharded> layouts = every_layout();
  const std::vector<Sharded> of_one_stage(layouts.begin(), layouts.begin() + static_cast<long>(layouts.size() / 3));
  for (Sharded how : of_one_stage) {
    how.stage = 0;
    how.instances = 1;
    layouts.push_back(how);
  }
  std::vector<Sharded> all;
  for (Sharded how : layouts) {
    for (const config::Memory& form : memory_forms()) {
      const bool splits = form.distribute_saved_activations;
      if (splits && how.cut.tp == 1) continue;  // nothing to split over; uniform recompute there is the first form
      if (form.recompute_num_layers * how.cut.pp * how.cut.vpp > 4) continue;  // of four layers
      how.memory = form;
      how.cut.sp = how.cut.tp == 2 && !splits;
      all.push_back(how);
    }
  }
  expect_equal_to_one_rank(small_gpt(), sample_cases(all, 5));
}

TEST(Zero, LionEqualsOneRank) {
  config::Config config = small_llama();
  config.optim.optimizer = "lion";
  config.optim.lr = 1e-3;
  expect_equal_to_one_rank(config, {{{1, 1, 1, 4, false}, 1, 1}, {{2, 2, 1, 2, true}, 3, 1}});
}

TEST(Zero, MuonOnEveryLayoutAndStageEqualsOneRank) {
  config::Config config = small_llama();
  config.optim.optimizer = "muon";
  config.model.num_query_groups = 4;
  std::vector<Sharded> all = every_layout();
  for (const TestLayout& layout :
       {TestLayout{2, 1, 1, 1, true}, TestLayout{2, 2, 2, 2, false}, TestLayout{1, 4, 1, 2, false}})
    all.push_back({layout, 0, 1});
  expect_equal_to_one_rank(config, all);
}

// in_proj is one matrix, of which each rank has rows of several sections.
TEST(Zero, MuonOfLinearAttentionEqualsOneRank) {
  config::Config delta_net = small_llama();
  delta_net.model.experimental_attention_variant = config::AttentionVariant::gated_delta_net;
  delta_net.model.linear_attention_freq = "2";
  delta_net.model.linear_num_key_heads = 2, delta_net.model.linear_key_head_dim = 5;
  delta_net.model.linear_num_value_heads = 4, delta_net.model.linear_value_head_dim = 3;
  config::Config lightning = small_llama();
  lightning.model.experimental_attention_variant = config::AttentionVariant::lightning_attention;
  lightning.model.linear_attention_freq = "2";
  for (config::Config config : {small_hybrid(), delta_net, lightning}) {
    config.optim.optimizer = "muon";
    expect_equal_to_one_rank(config,
                             {{{2, 1, 1, 1, true}, 0, 1}, {{2, 2, 1, 2, false}, 1, 1}, {{2, 1, 1, 4, true}, 3, 1}});
  }
}

TEST(Zero, ParameterGroupsAndADecoupledRateEqualOneRank) {
  config::Config config = small_gpt();
  config.optim.decoupled_lr = 2e-3;
  config.optim.decoupled_min_lr = 1e-3;
  config.optim.param_groups = {"*.linear_fc1.weight lr_mult=0.1 wd_mult=3", "*.bias lr_mult=2"};
  expect_equal_to_one_rank(config, {{{1, 2, 1, 2, false}, 1, 1}, {{2, 1, 1, 4, true}, 3, 1}});
}

// Each of two stages has parameters that the other lacks; a group that matches no parameter of either is named.
TEST(Zero, AParameterGroupThatFitsNothingIsAnError) {
  const TestLayout layout{1, 2, 1, 1, false};
  const auto catch_error = [&](const std::vector<std::string>& groups) {
    config::Config config = small_gpt();
    config.optim.param_groups = groups;
    config = cut(config, layout);
    std::string error;
    std::mutex mutex;
    run_sharded(config, layout, [&](const comm::World& world) {
      try {
        step::assemble(config, world, kVocab);
      } catch (const base::Error& refused) {
        const std::lock_guard lock(mutex);
        error += refused.what() + std::string("\n");
      }
    });
    return error;
  };
  EXPECT_EQ(catch_error({"embedding.* wd_mult=0", "decoder.final_layernorm.* lr_mult=2"}), "");
  const std::string error = catch_error({"*.bias lr_mult=2", "*.baes wd_mult=0"});
  EXPECT_NE(error.find("[config] optim.param_groups: '*.baes wd_mult=0': no parameter"), std::string::npos) << error;
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 2) << "both ranks refuse";
}

// One microbatch per step: each gradient is then one sum over the data-parallel ranks, in group order, in every
// stage. With several, ZeRO-2 and 3 first add the ranks' contributions of each microbatch, then the microbatches:
// another order.
TEST(Zero, StagesEqualEachOtherBitForBitInFloat32) {
  for (const TestLayout& layout :
       {TestLayout{1, 1, 1, 4, false}, TestLayout{2, 1, 1, 4, true}, TestLayout{1, 1, 1, 8, false}}) {
    config::Config config = verify::verification_config(small_gpt(), 3);
    config.precision.params_dtype = "fp32";
    config.train.global_batch_size = layout.dp;
    const LayoutRun plain = run(cut(config, layout), layout);
    for (int stage = 1; stage <= 3; ++stage) {
      SCOPED_TRACE(words({layout, stage, 1}));
      const LayoutRun got = run(sharded(config, {layout, stage, 1}), layout);
      EXPECT_EQ(got.losses, plain.losses);
      expect_equal_state(got.params, plain.params);
    }
  }
}

// In ZeRO-2 the buckets determine which microbatches are reduced together, so the test keeps that size.
TEST(Zero, OverlapAndBucketSizesChangeNoBit) {
  for (int stage = 0; stage <= 3; ++stage) {
    config::Config config = verify::verification_config(small_gpt(), 3);
    config.precision.params_dtype = "fp32";
    const TestLayout layout{1, 2, 2, 2, false};
    const LayoutRun overlapped = run(sharded(config, {layout, stage, 1}), layout);
    for (const bool align : {false, true}) {
      SCOPED_TRACE(base::concat("ZeRO ", stage, " align ", align));
      config::Config other = sharded(config, {layout, stage, 1});
      other.parallel.overlap_grad_reduce = other.parallel.overlap_param_gather = align;
      other.parallel.align_param_gather = align;
      if (stage != 2) other.parallel.ddp_bucket_size = 700;
      const LayoutRun got = run(other, layout);
      EXPECT_EQ(got.losses, overlapped.losses);
      expect_equal_state(got.params, overlapped.params);
    }
  }
}

}  // namespace
}  // namespace metroplex::test::zero_ranks_test

// Mixed precision: an overflow skips the step on every rank and changes no state, and non-finite gradients are named.
// Options that keep the order of additions change no bit.
#include <ATen/Parallel.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "comm/collectives.h"
#include "run/support.h"

namespace metroplex::test::precision_ranks_test {
namespace {

config::Config in(const std::string& dtype, config::Config config) {
  config.precision.params_dtype = dtype;
  config.optim.lr_warmup_iters = 0;
  return config;
}

// Several steps as in the trainer: the schedule advances on successful updates only.
struct Steps {
  std::vector<step::StepOutcome> outcomes;
  std::map<std::string, at::Tensor> params;  // rank 0
};
Steps run(const config::Config& base, const TestLayout& layout, int steps) {
  const config::Config config = cut(base, layout);
  Steps result;
  run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    std::vector<step::StepOutcome> outcomes;
    int64_t scheduled = 0;
    for (int64_t step = 0; step < steps; ++step) {
      auto before =
          verify::gather_whole(assembly->process, assembly->model, assembly->optimization, verify::GatherKind::data);
      outcomes.push_back(
          step::train_step(*assembly, {make_batches(*assembly, step), step + 1, scheduled, false, {}}));
      if (outcomes.back().updated) {
        scheduled += config.train.global_batch_size;
      } else {
        expect_equal_state(verify::gather_whole(assembly->process, assembly->model, assembly->optimization,
                                                verify::GatherKind::data),
                           before);
      }
    }
    auto params =
        verify::gather_whole(assembly->process, assembly->model, assembly->optimization, verify::GatherKind::data);
    if (world.rank() == 0) result = {outcomes, std::move(params)};
  });
  return result;
}

config::Config slow_llama() {
  config::Config config = small_llama();
  config.optim.lr = 3e-3;
  return config;
}

// Expected fp16 run with a halving scale, computed from a float64 run on the same layout. A step is skipped if scale
// times the largest contribution of one microbatch to a gradient on any rank exceeds fp16. With `learns` false no
// step updates.
struct Expected {
  std::vector<step::StepOutcome> outcomes;  // with the scale of each step
  double nearest = 1e9;                     // to the limit, as a factor
};
Expected expected_with_scale(const TestLayout& layout, int steps, double scale, bool learns) {
  const config::Config config = cut(in("fp64", slow_llama()), layout);
  Expected expected;
  run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    Expected mine;
    double largest = 0, now = scale;
    std::map<const nn::Param*, at::Tensor> before;
    for (nn::Param* param : assembly->model.params) {
      param->on_use.add("test", [&, param] {
        at::Tensor& sum = before[param];
        const at::Tensor added = sum.defined() ? param->main_grad - sum : param->main_grad;
        largest = std::max(largest, added.abs().max().item<double>());
        sum = param->main_grad.clone();
      });
    }
    int64_t scheduled = 0;
    for (int64_t step = 0; step < steps; ++step) {
      before.clear();
      largest = 0;
      const auto judge = [&](double) {
        const at::Tensor most = at::full({}, largest, at::kDouble);
        comm::all_reduce(most, assembly->process.groups().world, comm::ReduceOp::max);
        const double share = now * most.item<double>() / 65504;
        mine.nearest = std::min(mine.nearest, std::max(share, 1 / share));
        assembly->process.config.precision.grad_norm_skip_threshold = share < 1 && learns ? 1e30 : 0;
      };
      mine.outcomes.push_back(
          step::train_step(*assembly, {make_batches(*assembly, step), step + 1, scheduled, false, judge}));
      mine.outcomes.back().loss_scale = now;
      if (mine.outcomes.back().updated) {
        scheduled += config.train.global_batch_size;
      } else if (learns) {
        now /= 2;
      }
    }
    if (world.rank() == 0) expected = std::move(mine);
  });
  return expected;
}

// One rounding to fp16 is 2^-11. A token passes a hundred, ten times that: 5e-3, independent per token. The mean over
// 64 tokens is off by 6e-4; 1e-3 allowed. A gradient passes twice as many, 7e-3, and its norm shares the errors of
// the forward: three times that. Without updates, or with one wrong skip, the test fails.
TEST(LossScaling, StepsThatOverflowAreSkippedAndTheOthersAreTheExactRun) {
  constexpr int kSteps = 30;
  constexpr double kScale = 4294967296.0, kTolerance = 1e-3;
  config::Config config = in("fp16", slow_llama());
  config.precision.initial_loss_scale = kScale;
  config.precision.hysteresis = 1;
  for (const TestLayout& layout : {TestLayout{}, TestLayout{2, 2, 1, 2, true}}) {
    const Steps steps = run(config, layout, kSteps);
    const Expected exact = expected_with_scale(layout, kSteps, kScale, true),
                   still = expected_with_scale(layout, kSteps, kScale, false);
    ASSERT_GT(exact.nearest, 1.1) << "rounding could decide";
    int updates = 0;
    double learnt = 0;
    for (size_t i = 0; i < kSteps; ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      const auto &got = steps.outcomes.at(i), &want = exact.outcomes.at(i);
      EXPECT_EQ(got.updated, want.updated) << got.skipped;
      EXPECT_EQ(got.loss_scale, want.loss_scale);
      EXPECT_EQ(got.lr, want.lr) << "the schedule moves on updates only";
      EXPECT_NEAR(got.loss, want.loss, kTolerance * want.loss);
      if (want.updated) { EXPECT_NEAR(got.grad_norm, want.grad_norm, 20 * kTolerance * want.grad_norm); }
      updates += want.updated;
      learnt = std::max(learnt, still.outcomes.at(i).loss - want.loss);
    }
    EXPECT_GT(updates, 10);
    EXPECT_LT(updates, kSteps - 5);
    EXPECT_GT(learnt, 20 * kTolerance * still.outcomes[0].loss);
  }
}

TEST(LossScaling, AnOverflowOnOneRankSkipsTheStepOnAll) {
  const TestLayout layout{2, 2, 1, 2, false};
  for (const char* strategy : {"no_shard", "optim", "optim_grads_params"}) {
    config::Config config = in("bf16", small_llama());
    config.precision.loss_scale = 256;
    config.parallel.data_parallel_sharding_strategy = strategy;
    config = cut(config, layout);
    run_sharded(config, layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      if (world.rank() == 5) {
        nn::Param& param = *assembly->model.params.back();
        param.on_use.add("test", [&param] { param.main_grad.view(-1)[0] = std::numeric_limits<double>::infinity(); });
      }
      const auto outcome = step::train_step(*assembly, {make_batches(*assembly, 0), 1, 0, false, {}});
      EXPECT_FALSE(outcome.updated);
      EXPECT_NE(outcome.skipped.find("256"), std::string::npos) << outcome.skipped;
      EXPECT_EQ(assembly->optimization.step_state.read().steps, 0);
    });
  }
}

TEST(LossScaling, AConstantPowerOfTwoChangesNoBitInBf16) {
  config::Config config = in("bf16", small_llama());
  const Steps plain = run(config, {}, 4);
  config.precision.loss_scale = 1024;
  const Steps scaled = run(config, {}, 4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(scaled.outcomes[i].loss, plain.outcomes[i].loss);
    EXPECT_EQ(scaled.outcomes[i].grad_norm, plain.outcomes[i].grad_norm);
  }
  expect_equal_state(scaled.params, plain.params);
}

TEST(Precision, PipelineStagesChangeNoBitInHalfPrecision) {
  for (const char* dtype : {"bf16", "fp16"}) {
    config::Config config = in(dtype, small_gpt());
    config.precision.initial_loss_scale = 1024;
    // On one stage the two uses of a tied table are summed in fp16, on two stages in the fp32 buffer.
    config.model.untie_embeddings_and_output_weights = std::string(dtype) == "fp16";
    const Steps one = run(config, {}, 3);
    for (const TestLayout& layout : {TestLayout{1, 2, 1, 1, false}, TestLayout{1, 2, 2, 1, false}}) {
      const Steps cut_up = run(config, layout, 3);
      // Gradients are summed in the same order before the first norm and update, so all later values agree too.
      for (size_t i = 0; i < 3; ++i)
        EXPECT_EQ(cut_up.outcomes[i].loss, one.outcomes[i].loss) << dtype << " step " << i;
    }
  }
}

// bf16 has 8 bits: with losses near 4 and some hundred rounded operations, 1 in 200.
TEST(Precision, HalfPrecisionFollowsFloat64) {
  for (const char* dtype : {"bf16", "fp16"}) {
    for (const TestLayout& layout : {TestLayout{}, TestLayout{2, 2, 2, 2, true}}) {
      config::Config config = in(dtype, small_llama());
      config.precision.initial_loss_scale = 1024;
      const Steps half = run(config, layout, 6), exact = run(in("fp64", small_llama()), {}, 6);
      for (size_t i = 0; i < 6; ++i)
        EXPECT_NEAR(half.outcomes[i].loss, exact.outcomes[i].loss, 0.005 * exact.outcomes[i].loss) << dtype;
    }
  }
}

TEST(Precision, TheSameRunTwiceIsTheSameBitsOnTwoThreadsToo) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const int before = at::get_num_threads();
    at::set_num_threads(2);
    const Steps first = run(in(dtype, small_gpt()), {}, 3), second = run(in(dtype, small_gpt()), {}, 3);
    at::set_num_threads(before);
    EXPECT_EQ(second.outcomes[2].loss, first.outcomes[2].loss);
    expect_equal_state(second.params, first.params);
  }
}

TEST(GradientNorm, AboveTheThresholdTheStepIsSkipped) {
  config::Config config = small_gpt();
  config.precision.grad_norm_skip_threshold = 1e-3;
  const Steps steps = run(config, {1, 2, 1, 2, false}, 2);
  for (const auto& outcome : steps.outcomes) {
    EXPECT_FALSE(outcome.updated);
    EXPECT_NE(outcome.skipped.find("grad_norm_skip_threshold"), std::string::npos);
  }
  config.precision.grad_norm_skip_threshold = 1e3;
  EXPECT_TRUE(run(config, {}, 1).outcomes[0].updated);
}

// The error of train_step if `poisoned(n)` puts a NaN into the gradient of linear_fc1 at its n-th use on `rank`.
std::string message_of_nan(const config::Config& config, const TestLayout& layout, int rank,
                           const std::function<bool(int use)>& poisoned) {
  try {
    run_sharded(config, layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      nn::Param& param = **std::find_if(
          assembly->model.params.begin(), assembly->model.params.end(),
          [](const nn::Param* param) { return param->name.find("linear_fc1.weight") != std::string::npos; });
      int uses = 0;
      if (world.rank() == rank) {
        param.on_use.add("test", [&] {
          if (poisoned(uses++)) param.main_grad.view(-1)[3] = std::numeric_limits<double>::quiet_NaN();
        });
      }
      step::train_step(*assembly, {make_batches(*assembly, 0), 9, 0, false, {}});
    });
  } catch (const base::Error& error) { return error.what(); }
  return "";
}

void expect_words(const std::string& message, const std::vector<std::string>& words, const std::string& what) {
  for (const std::string& word : words)
    EXPECT_NE(message.find(word), std::string::npos) << what << ": no '" << word << "' in: " << message;
}

TEST(NotFinite, AGradientIsNamedWithItsParameterRankAndMicrobatch) {
  const TestLayout layout{1, 2, 1, 2, false};
  for (const char* strategy : {"no_shard", "optim", "optim_grads"}) {
    config::Config config = small_gpt();
    config.parallel.data_parallel_sharding_strategy = strategy;
    // Rank 2: the last stage, data-parallel rank 0. Four microbatches, then each alone.
    const std::string message = message_of_nan(cut(config, layout), layout, 2, [](int use) { return use % 4 == 2; });
    expect_words(message,
                 {"decoder.layers.2.mlp.linear_fc1.weight", "iteration 9", "microbatch 2", "rank 2", "optim.lr"},
                 strategy);
  }
}

// The data produces the gradients: one position of one microbatch of the last data-parallel rank.
TEST(NotFinite, TheMicrobatchWhoseDataIsToBlameIsNamedInEveryLayoutAndNothingIsUpdated) {
  for (const TestLayout& layout :
       {TestLayout{1, 1, 1, 1, false}, TestLayout{1, 2, 1, 2, false}, TestLayout{2, 2, 1, 2, true},
        TestLayout{1, 2, 2, 2, false}, TestLayout{2, 1, 1, 2, false}}) {
    for (const char* strategy : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
      config::Config config = small_gpt();
      config.parallel.data_parallel_sharding_strategy = strategy;
      config.train.check_for_nan_in_loss = false;
      config = cut(config, layout);
      for (const size_t blamed : {size_t{0}, size_t{3}}) {
        SCOPED_TRACE(testing::Message() << strategy << " tp " << layout.tp << " pp " << layout.pp << " vpp "
                                        << layout.vpp << " microbatch " << blamed);
        run_sharded(config, layout, [&](const comm::World& world) {
          const auto assembly = step::assemble(config, world, kVocab);
          step_at(*assembly, 0);
          const auto before = whole_state(*assembly);
          auto batches = make_batches(*assembly, 1);
          if (assembly->process.groups().dp.last())
            batches.at(blamed).loss_mask[0][1] = std::numeric_limits<double>::quiet_NaN();
          std::string message;
          try {
            step::train_step(*assembly, {batches, 2, config.train.global_batch_size, false, {}});
          } catch (const base::Error& error) { message = error.what(); }
          expect_words(message, {"iteration 2", "microbatch " + std::to_string(blamed) + ";"}, "rank");
          expect_equal_state(whole_state(*assembly), before);
        });
      }
    }
  }
}

TEST(NotFinite, TheMicrobatchIsNamedWithVirtualStagesToo) {
  const TestLayout layout{1, 2, 2, 2, false};
  // Four microbatches, then four copies of each.
  const std::string message = message_of_nan(cut(small_gpt(), layout), layout, 2,
                                             [](int use) { return use == 2 || (use >= 12 && use < 16); });
  expect_words(message, {"linear_fc1.weight", "microbatch 2", "rank 2"}, "vpp 2");
}

// Stages and overlap change no bit of a loss, and chunks only the order of sums: 2^-20 allows 16 roundings in fp32.
// 16-bit logits of size 1 and more change the loss by far more.
TEST(OutputLogits, Fp32OnEveryLayout) {
  for (const char* dtype : {"bf16", "fp16"}) {
    config::Config config = in(dtype, small_llama());
    config.precision.initial_loss_scale = 1;
    config.model.init_method_std = 0.5;
    const double rounded = run(config, {}, 1).outcomes[0].loss;
    config.precision.output_logit_dtype = "fp32";
    const double loss = run(config, {}, 1).outcomes[0].loss;
    EXPECT_GT(std::abs(loss - rounded), loss * 0x1p-18);
    for (const TestLayout& layout : {TestLayout{1, 2, 1, 1, false}, TestLayout{1, 2, 2, 1, false}})
      EXPECT_EQ(run(config, layout, 1).outcomes[0].loss, loss);
    config.memory.loss_chunk_tokens = 5;
    EXPECT_NEAR(run(config, {}, 1).outcomes[0].loss, loss, loss * 0x1p-20);
  }
}

}  // namespace
}  // namespace metroplex::test::precision_ranks_test

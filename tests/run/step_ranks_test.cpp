// Training steps: per-token loss, label smoothing, sharded initialization, and a NaN loss.
#include <cmath>
#include <limits>
#include <mutex>

#include "base/error.h"
#include "comm/collectives.h"
#include "run/support.h"
#include "verify/verify.h"

namespace metroplex::test::step_ranks_test {
namespace {

using verify::LayoutRun;

LayoutRun run(const config::Config& config, const TestLayout& layout) {
  LayoutRun result;
  run_sharded(config, layout, [&](const comm::World& world) {
    LayoutRun mine = verify::run_layout(config, world, kVocab, 3);
    if (world.rank() == 0) result = std::move(mine);
  });
  return result;
}

void expect_equal_to_one_rank(const config::Config& base, const TestLayout& layout) {
  SCOPED_TRACE(
      base::concat("tp ", layout.tp, " pp ", layout.pp, " vpp ", layout.vpp, " dp ", layout.dp, " sp ", layout.sp));
  const config::Config config = cut(verify::verification_config(base, 3), layout);
  const LayoutRun reference = run(cut(verify::verification_config(base, 3), {}), {});
  const auto difference = verify::compare_runs(run(config, layout), reference);
  EXPECT_LE(difference.loss, verify::kLossTolerance);
  EXPECT_LE(difference.grad_norm, 1e-11);
  EXPECT_LE(difference.parameter, verify::kParameterTolerance) << difference.parameter_name;
}

constexpr TestLayout kSomeLayouts[] = {
    {1, 1, 1, 4, false}, {2, 1, 1, 1, true}, {1, 2, 2, 2, false}, {2, 2, 1, 2, false}, {2, 2, 2, 2, true}};

TEST(PerTokenLoss, AnyLayoutEqualsOneRank) {
  config::Config config = small_gpt();
  config.train.calculate_per_token_loss = true;
  for (const TestLayout& layout : kSomeLayouts) expect_equal_to_one_rank(config, layout);
}

TEST(PerTokenLoss, IsNotTheMeanOfTheMicrobatchesMeans) {
  config::Config config = verify::verification_config(small_gpt(), 3);
  const LayoutRun means = run(cut(config, {}), {});
  config.train.calculate_per_token_loss = true;
  const LayoutRun tokens = run(cut(config, {}), {});
  EXPECT_GT(std::abs(means.losses[0] - tokens.losses[0]), 1e-6);
  EXPECT_GT(std::abs(means.grad_norms[0] - tokens.grad_norms[0]), 1e-6);
}

// If all microbatches have the same number of tokens, both kinds of mean agree: loss, norm and update.
TEST(PerTokenLoss, WithEqualMasksIsTheMeanOfTheMicrobatchesMeans) {
  const TestLayout layout{1, 2, 1, 2, false};
  std::vector<std::vector<double>> numbers;
  for (const bool per_token : {false, true}) {
    config::Config config = small_gpt();
    config.train.calculate_per_token_loss = per_token;
    config = cut(config, layout);
    run_sharded(config, layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      std::vector<double> mine;
      for (int64_t step = 0; step < 3; ++step) {
        auto batches = make_batches(*assembly, step);
        for (nn::Microbatch& batch : batches) {
          batch.loss_mask.fill_(1.0);
          batch.mask_sum = static_cast<double>(batch.loss_mask.numel());
        }
        const auto outcome = step::train_step(*assembly, {batches, step + 1, 8 * step, false, {}});
        mine.insert(mine.end(), {outcome.loss, outcome.grad_norm, outcome.tokens});
      }
      if (world.rank() == 0) numbers.push_back(mine);
    });
  }
  ASSERT_EQ(numbers.size(), 2u);
  for (size_t i = 0; i < numbers[0].size(); ++i) EXPECT_NEAR(numbers[1][i], numbers[0][i], 1e-11) << i;
  EXPECT_EQ(numbers[0][2], 8.0 * kSequence);
}

TEST(LabelSmoothing, AnyLayoutEqualsOneRank) {
  config::Config config = small_llama();
  config.train.label_smoothing = 0.15;
  for (const TestLayout& layout :
       {TestLayout{2, 1, 1, 1, false}, TestLayout{2, 2, 1, 1, true}, TestLayout{1, 1, 1, 2, false}}) {
    expect_equal_to_one_rank(config, layout);
  }
}

TEST(LabelSmoothing, ChangesTheLoss) {
  config::Config config = verify::verification_config(small_llama(), 3);
  const LayoutRun plain = run(cut(config, {}), {});
  config.train.label_smoothing = 0.15;
  EXPECT_GT(std::abs(run(cut(config, {}), {}).losses[1] - plain.losses[1]), 1e-6);
}

TEST(VariableLengths, MicrobatchesOfDifferentLengthTrainAsOnOneRank) {
  const config::Config config = small_gpt();
  const auto losses_on = [&](const TestLayout& layout) {
    const config::Config settings = cut(config, layout);
    std::vector<double> seen;
    run_sharded(settings, layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(settings, world, kVocab);
      assembly->model.variable_lengths = true;
      for (int64_t step = 0; step < 3; ++step) {
        std::vector<nn::Microbatch> batches;
        for (int64_t m = 0; m < 4; ++m) {
          config::Train train = settings.train;
          train.seq_length = 2 * (1 + (m + step) % 4);
          batches.push_back(make_batch(train, 4 * step + m, step));
        }
        const auto outcome = step::train_step(*assembly, {batches, step + 1, 8 * step, false, {}});
        if (world.rank() == 0) seen.push_back(outcome.loss + outcome.grad_norm);
      }
    });
    return seen;
  };
  const auto one = losses_on({});
  for (const TestLayout& layout : {TestLayout{1, 2, 1, 1, false}, TestLayout{2, 2, 2, 1, true}}) {
    const auto got = losses_on(layout);
    ASSERT_EQ(got.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(got[i], one[i], 1e-11) << "step " << i;
  }
}

// Both stages sample their own values, the copy receives the first stage's values, and every step keeps them equal.
TEST(ShardedInitialization, TrainsAndItsTiedCopiesStayEqual) {
  config::Config config = small_gpt();
  config.model.sharded_initialization = true;
  config.optim.lr_warmup_iters = 0;
  const TestLayout layout{2, 2, 1, 2, false};
  config = cut(config, layout);
  run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const auto tied = [&]() -> nn::Param& {
      for (nn::Param* param : assembly->model.params) {
        if (!param->placement.shared.empty()) return *param;
      }
      throw base::Error("test", "no shared parameter");
    };
    const auto expect_equal_copies = [&](const char* when) {
      at::Tensor sum = tied().data.clone();
      comm::all_reduce(sum, assembly->model.shared.front().group);
      EXPECT_TRUE(at::equal(sum, 2.0 * tied().data)) << when;
    };
    expect_equal_copies("at the start");
    const at::Tensor rows =
        tied().data.narrow(0, 0, tied().placement.cuts[0].ranges[0].size);  // the others are padding
    EXPECT_NEAR(rows.std().item<double>(), config.model.init_method_std, 0.003) << "of some hundred values";
    double first = 0, last = 0;
    for (int64_t step = 0; step < 8; ++step) {
      const auto batches =
          make_batches(*assembly, 0);  // the same batches again: the loss of a learning model must fall
      const auto outcome = step::train_step(*assembly, {batches, step + 1, 0, false, {}});
      (step == 0 ? first : last) = outcome.loss;
      expect_equal_copies("after a step");
    }
    EXPECT_LT(last, first - 0.2);
    at::Tensor difference = tied().data.clone();
    if (!assembly->process.groups().tp.first()) difference.neg_();
    comm::all_reduce(difference, assembly->process.groups().tp);
    EXPECT_GT(difference.abs().max().item<double>(), 0.01) << "tensor-parallel ranks drew the same rows";
  });
}

struct Failure {
  std::string message;
  bool changed = false;  // some rank's parameters or step count changed
};

// One step after `spoil` modified every rank's batches.
Failure failing_step(const config::Config& base, const TestLayout& layout,
                     const std::function<void(const comm::World&, std::vector<nn::Microbatch>&)>& spoil) {
  const config::Config config = cut(base, layout);
  Failure failure;
  std::mutex lock;
  try {
    run_sharded(config, layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      auto batches = make_batches(*assembly, 0);
      spoil(world, batches);
      std::vector<at::Tensor> before;
      for (const nn::Param* param : assembly->model.params) before.push_back(param->data.clone());
      const auto check = [&] {
        const std::lock_guard hold(lock);
        failure.changed = failure.changed || assembly->optimization.step_state.read().steps != 0;
        for (size_t i = 0; i < before.size(); ++i) {
          failure.changed = failure.changed || !at::equal(before[i], assembly->model.params[i]->data);
        }
      };
      try {
        step::train_step(*assembly, {batches, 7, 80, false, {}});
      } catch (...) {
        check();
        throw;
      }
      check();
    });
  } catch (const base::Error& error) { failure.message = error.what(); }
  return failure;
}

void poison(nn::Microbatch& batch) {
  // The model's softmax has finite inputs; the mask makes the sum NaN.
  batch.loss_mask[0][0] = std::numeric_limits<double>::quiet_NaN();
}

TEST(NotANumber, InTheLossNamesRankIterationAndMicrobatchAndUpdatesNothing) {
  const Failure failure = failing_step(small_gpt(), {1, 2, 1, 2, false}, [](const comm::World& world, auto& batches) {
    if (world.groups().dp.index() == 1) poison(batches[2]);
  });
  // Order tp-dp-pp: the last stage of data-parallel rank 1 is rank 3.
  for (const char* word : {"iteration 7", "microbatch 2", "rank 3", "nan", "optim.lr"}) {
    EXPECT_NE(failure.message.find(word), std::string::npos) << "no '" << word << "' in: " << failure.message;
  }
  EXPECT_FALSE(failure.changed);
}

TEST(NotANumber, IsLetThroughWhenBothChecksAreOff) {
  config::Config config = small_gpt();
  config.train.check_for_nan_in_loss = false;
  config.precision.check_for_nan_in_grad = false;
  const Failure failure = failing_step(config, {}, [](const comm::World&, auto& batches) { poison(batches[0]); });
  EXPECT_EQ(failure.message, "");
  EXPECT_TRUE(failure.changed);
}

// The checks are independent: the gradients are checked even if the loss check is off.
TEST(NotANumber, InGradientsIsRefusedWithoutTheCheckOfTheLoss) {
  config::Config config = small_gpt();
  config.train.check_for_nan_in_loss = false;
  for (const TestLayout& layout : {TestLayout{}, TestLayout{1, 2, 1, 2, false}}) {
    const Failure failure =
        failing_step(config, layout, [](const comm::World&, auto& batches) { poison(batches[1]); });
    for (const char* word : {"the gradient of", "iteration 7", "microbatch 1", "nothing was updated"}) {
      EXPECT_NE(failure.message.find(word), std::string::npos) << "no '" << word << "' in: " << failure.message;
    }
    EXPECT_FALSE(failure.changed);
  }
}

TEST(Stopping, AnyRankThatIsAskedToEndEndsThemAll) {
  const TestLayout layout{1, 2, 1, 2, false};
  const config::Config config = cut(small_gpt(), layout);
  run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    EXPECT_FALSE(step::train_step(*assembly, {make_batches(*assembly, 0), 1, 0, false, {}}).stop);
    EXPECT_TRUE(step::train_step(*assembly, {make_batches(*assembly, 1), 2, 8, world.rank() == 1, {}}).stop);
  });
}

TEST(Stopping, AnEvaluationHearsOfItToo) {
  const TestLayout layout{1, 2, 1, 2, false};
  const config::Config config = cut(small_gpt(), layout);
  run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    EXPECT_FALSE(step::evaluate_step(*assembly, make_batches(*assembly, 0)).stop);
    EXPECT_TRUE(step::evaluate_step(*assembly, make_batches(*assembly, 0), world.rank() == 2).stop);
  });
}

TEST(Evaluation, IsTheSameOnAnyLayoutAndLeavesTheModelAlone) {
  std::vector<double> means;
  for (const TestLayout& layout : {TestLayout{}, TestLayout{2, 2, 2, 1, true}, TestLayout{1, 1, 1, 4, false}}) {
    const config::Config config = cut(small_gpt(), layout);
    run_sharded(config, layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      auto batches = make_batches(*assembly, 0);
      for (nn::Microbatch& batch : batches) batch.training = false;
      const auto before =
          verify::gather_whole(assembly->process, assembly->model, assembly->optimization, verify::GatherKind::data);
      const double mean = step::evaluate_step(*assembly, batches).mean();
      EXPECT_EQ(step::evaluate_step(*assembly, batches).mean(), mean);
      if (world.rank() == 0) means.push_back(mean);
      expect_equal_state(
          verify::gather_whole(assembly->process, assembly->model, assembly->optimization, verify::GatherKind::data),
          before);
    });
  }
  ASSERT_EQ(means.size(), 3u);
  EXPECT_NEAR(means[0], std::log(kVocab), 0.2);
  for (const double mean : means) EXPECT_NEAR(mean, means[0], 1e-12 * means[0]);
}

}  // namespace
}  // namespace metroplex::test::step_ranks_test

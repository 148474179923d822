// A training state goes to disk and comes back: bit for bit on the same layout and on any other, and a run that goes
// on keeps to its schedule and seed.
#include "train/state.h"

#include "base/error.h"
#include "train/legs.h"

namespace metroplex::test {
namespace {

constexpr Cut kEight{2, 2, 1, 2, true}, kInterleaved{1, 2, 2, 1, false}, kFour{1, 1, 1, 4, false};

TEST(TrainingState, OnTheSameLayoutTheRunGoesOnBitForBit) {
  for (const char* optimizer : {"adam", "sgd"}) {
    const Folder folder;
    config::Config config = small_gpt();
    config.optim.optimizer = optimizer;
    const Outcome straight = run_leg(config, {kEight, "", "", 0, 4});
    run_leg(config, {kEight, "", folder.at("ckpt"), 0, 2});
    const Outcome resumed = run_leg(config, {kEight, folder.at("ckpt"), "", 2, 4});
    EXPECT_TRUE(resumed.loaded.loaded);
    EXPECT_EQ(resumed.loaded.position.iteration, 2);
    EXPECT_EQ(resumed.loaded.position.consumed_train_samples, 16);
    expect_equal_state(resumed.state, straight.state);
    EXPECT_EQ(resumed.losses, std::vector<double>(straight.losses.begin() + 2, straight.losses.end()));
    EXPECT_EQ(resumed.norms, std::vector<double>(straight.norms.begin() + 2, straight.norms.end()));
  }
}

// Weights and moments wander 8 -> 1 -> 4 -> 2 ranks unchanged, and the step after is that of the first layout.
void wander(const config::Config& config, size_t tensors) {
  const Folder folder;
  const Outcome eight = run_leg(config, {kEight, "", folder.at("a"), 0, 2});
  ASSERT_EQ(eight.state.size(), tensors);
  for (const auto& [name, tensor] : eight.state) {
    EXPECT_GT(tensor.abs().max().item<double>(), 0.0) << name << " is nothing: the comparison would be empty";
  }
  expect_equal_state(run_leg(config, {{}, folder.at("a"), folder.at("b"), 2, 2}).state, eight.state);
  expect_equal_state(run_leg(config, {kFour, folder.at("b"), folder.at("c"), 2, 2}).state, eight.state);
  expect_equal_state(run_leg(config, {kInterleaved, folder.at("c"), folder.at("d"), 2, 2}).state, eight.state);
  const Outcome there = run_leg(config, {kEight, folder.at("a"), "", 2, 4});
  for (const Cut& layout : {Cut{}, kFour, kInterleaved}) {
    const Outcome here = run_leg(config, {layout, folder.at("d"), "", 2, 4});
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(here.losses[i], there.losses[i], 1e-12 * there.losses[i]);
  }
}

TEST(TrainingState, OfATiedGptWandersOverLayoutsUnchanged) { wander(small_gpt(), 3 * (4 + 4 * 12)); }
TEST(TrainingState, OfAnUntiedLlamaWandersOverLayoutsUnchanged) { wander(small_llama(), 3 * (3 + 4 * 6)); }

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const base::Error& error) { return error.what(); }
  return "accepted";
}

TEST(TrainingState, AnotherLearningRateScheduleIsRefusedUnlessDecided) {
  const Folder folder;
  const config::Config saved = small_gpt();
  run_leg(saved, {{}, "", folder.at("ckpt"), 0, 2});
  config::Config other = saved;
  other.optim.lr = 3e-2;
  const Leg resume{{}, folder.at("ckpt"), "", 2, 3};
  const std::string message = refusal([&] { run_leg(other, resume); });
  for (const char* word : {"optim.lr", "0.03", "0.01", "override_opt_param_scheduler"}) {
    EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
  }
  const Outcome as_before = run_leg(saved, resume);
  other.optim.use_checkpoint_opt_param_scheduler = true;
  expect_equal_state(run_leg(other, resume).state, as_before.state);
  other.optim.use_checkpoint_opt_param_scheduler = false;
  other.optim.override_opt_param_scheduler = true;
  const Outcome overridden = run_leg(other, resume);
  const at::Tensor a = overridden.state.at("embedding.word_embeddings.weight"),
                   b = as_before.state.at("embedding.word_embeddings.weight");
  EXPECT_GT((a - b).abs().max().item<double>(), 1e-4) << "the higher rate is not in use";
}

TEST(TrainingState, AnotherSeedIsRefusedUnlessTheOldOneIsGivenUp) {
  const Folder folder;
  run_leg(small_gpt(), {{}, "", folder.at("ckpt"), 0, 1});
  config::Config other = small_gpt();
  other.run.seed = 77;
  const Leg resume{{}, folder.at("ckpt"), "", 1, 2};
  const std::string message = refusal([&] { run_leg(other, resume); });
  EXPECT_NE(message.find("run.seed"), std::string::npos) << message;
  other.checkpoint.no_load_rng = true;
  EXPECT_TRUE(run_leg(other, resume).loaded.loaded);
}

TEST(TrainingState, FinetuningTakesTheWeightsAlone) {
  const Folder folder;
  const Outcome saved = run_leg(small_gpt(), {{}, "", folder.at("ckpt"), 0, 2});
  config::Config config = small_gpt();
  config.checkpoint.finetune = true;
  config.optim.lr = 5e-2;  // a schedule of its own
  const Outcome fresh = run_leg(config, {{}, folder.at("ckpt"), "", 0, 0});
  for (const auto& [name, tensor] : fresh.state) {
    if (name.find(' ') == std::string::npos) {
      EXPECT_TRUE(at::equal(tensor, saved.state.at(name))) << name;
    } else {
      EXPECT_EQ(tensor.abs().max().item<double>(), 0.0) << name;
    }
  }
}

TEST(TrainingState, NoCheckpointIsAFreshStartOrAnErrorAsAsked) {
  const Folder folder;
  config::Config config = small_gpt();
  EXPECT_FALSE(run_leg(config, {{}, folder.at("none"), "", 0, 0}).loaded.loaded);
  config.checkpoint.exit_on_missing_checkpoint = true;
  const std::string message = refusal([&] { run_leg(config, {kFour, folder.at("none"), "", 0, 0}); });
  EXPECT_NE(message.find(folder.at("none")), std::string::npos) << message;
}

TEST(TrainingState, ASaveThatFailsSaysWhyOnEveryRankAndTheRunGoesOn) {
  const Cut layout{1, 1, 1, 2, false};
  config::Config config = small_gpt();
  config.checkpoint.save = "/dev/null/nowhere";
  config.checkpoint.save_interval = 1;
  config = cut(config, layout);
  run_cut(config, layout, [&](const comm::World& world) {
    const auto a = train::assemble(config, world, kVocab);
    const auto outcome = train::save_state(*a, {1, 8, 0});
    EXPECT_FALSE(outcome.saved);
    EXPECT_NE(outcome.problem.find("'/dev/null'"), std::string::npos) << outcome.problem;
    EXPECT_GT(step_at(*a, 0).loss, 0.0);
  });
}

}  // namespace
}  // namespace metroplex::test

// Saves and loads a training state: bit for bit on the same layout and on any other. A resumed run keeps its schedule
// and seed.
#include "run/posix_disk.h"

#include "base/error.h"
#include "checkpoint/directory.h"
#include "files/file_system.h"
#include "files/manifest.h"
#include "support/error_of.h"
#include "support/poisoned.h"
#include "run/legs.h"

namespace metroplex::test::state_ranks_test {
namespace {

constexpr TestLayout kEight{2, 2, 1, 2, true}, kInterleaved{1, 2, 2, 1, false}, kFour{1, 1, 1, 4, false};

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

// Weights and moments move 8 -> 1 -> 4 -> 2 ranks unchanged, and the next step equals that of the first layout.
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
  for (const TestLayout& layout : {TestLayout{}, kFour, kInterleaved}) {
    const Outcome here = run_leg(config, {layout, folder.at("d"), "", 2, 4});
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(here.losses[i], there.losses[i], 1e-12 * there.losses[i]);
  }
}

TEST(TrainingState, OfATiedGptWandersOverLayoutsUnchanged) { wander(small_gpt(), 3 * (4 + 4 * 12)); }
TEST(TrainingState, OfAnUntiedLlamaWandersOverLayoutsUnchanged) { wander(small_llama(), 3 * (3 + 4 * 6)); }

// No checkpoint contains padding rows of the vocabulary.
TEST(TrainingState, PaddingStaysZeroWhenAnotherNumberFormatIsLoaded) {
  const Folder folder;
  run_leg(small_gpt(), {{}, "", folder.at("ckpt"), 0, 1});
  config::Config half = small_gpt();
  half.precision.params_dtype = "bf16";
  half.checkpoint.load = folder.at("ckpt");
  half.checkpoint.finetune = true;
  half = cut(half, {});
  const NanFillGuard poisoned;  // uninitialized memory is NaN
  run_sharded(half, {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(half, world, kVocab);
    EXPECT_TRUE(run::load_state(*assembly, folder.at("ckpt")).loaded);
    int64_t padding = 0;
    for (const distributed::Shard& slice : assembly->model.slices) {
      const auto rows = slice.param->local_shape.front();
      if (slice.param->padding_numel() == 0) continue;
      const at::Tensor values = slice.values.view({rows, -1});
      EXPECT_EQ(values.narrow(0, kVocab, rows - kVocab).abs().max().item<double>(), 0) << slice.param->name;
      EXPECT_GT(values.narrow(0, 0, kVocab).abs().max().item<double>(), 0) << slice.param->name;
      padding += slice.param->padding_numel();
    }
    EXPECT_GT(padding, 0);
  });
}

TEST(TrainingState, AnotherLearningRateScheduleIsRefusedUnlessDecided) {
  const Folder folder;
  const config::Config saved = small_gpt();
  run_leg(saved, {{}, "", folder.at("ckpt"), 0, 2});
  config::Config other = saved;
  other.optim.lr = 3e-2;
  const Leg resume{{}, folder.at("ckpt"), "", 2, 3};
  const std::string message = catch_error([&] { run_leg(other, resume); });
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
  const std::string message = catch_error([&] { run_leg(other, resume); });
  EXPECT_NE(message.find("run.seed"), std::string::npos) << message;
  other.checkpoint.no_load_rng = true;
  EXPECT_TRUE(run_leg(other, resume).loaded.loaded);
}

TEST(TrainingState, FinetuningTakesTheWeightsAlone) {
  const Folder folder;
  const Outcome saved = run_leg(small_gpt(), {{}, "", folder.at("ckpt"), 0, 2});
  config::Config config = small_gpt();
  config.checkpoint.finetune = true;
  config.optim.lr = 5e-2;  // another schedule
  const Outcome fresh = run_leg(config, {{}, folder.at("ckpt"), "", 0, 0});
  for (const auto& [name, tensor] : fresh.state) {
    if (name.find(' ') == std::string::npos) {
      EXPECT_TRUE(at::equal(tensor, saved.state.at(name))) << name;
    } else {
      EXPECT_EQ(tensor.abs().max().item<double>(), 0.0) << name;
    }
  }
}

// Every key of the model that changes its function, one at a time; the shapes stay the same if possible.
TEST(TrainingState, AnotherModelIsRefusedUnlessTheKeyIsAllowed) {
  const Folder folder;
  config::Config saved = small_llama();
  saved.model.family = "gpt";
  saved.model.normalization = "RMSNorm";
  saved.model.position_embedding_type = "rope";
  saved.model.activation = "silu";
  saved.model.gated_linear_unit = true;
  saved.model.add_bias_linear = false;
  saved.model.untie_embeddings_and_output_weights = true;
  run_leg(saved, {{}, "", folder.at("ckpt"), 0, 1});
  const std::pair<const char*, std::function<void(config::Model&)>> changes[] = {
      {"model.rotary_base", [](config::Model& m) { m.rotary_base = 500; }},
      {"model.rotary_percent", [](config::Model& m) { m.rotary_percent = 0.5; }},
      {"model.activation", [](config::Model& m) { m.activation = "gelu"; }},
      {"model.layernorm_epsilon", [](config::Model& m) { m.layernorm_epsilon = 1e-3; }},
      {"model.num_attention_heads",
       [](config::Model& m) { m.num_attention_heads = 2, m.kv_channels = 8, m.num_query_groups = 1; }},
      {"model.num_layers", [](config::Model& m) { m.num_layers = 2; }},
      {"model.num_layers", [](config::Model& m) { m.num_layers = 6; }},
      {"model.position_embedding_type", [](config::Model& m) { m.position_embedding_type = "none"; }},
      {"model.hidden_size", [](config::Model& m) { m.hidden_size = 32; }}};
  for (const auto& [key, change] : changes) {
    config::Config other = saved;
    change(other.model);
    const std::string message = catch_error([&] { run_leg(other, {{}, folder.at("ckpt"), "", 1, 1}); });
    for (const std::string& word : {std::string(key), folder.at("ckpt"), "--checkpoint.allow " + std::string(key)})
      EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
  }
  config::Config other = saved;
  other.model.rotary_base = 500;
  other.model.activation = "gelu";
  other.checkpoint.allow = {"model.rotary_base"};
  const std::string message = catch_error([&] { run_leg(other, {kFour, folder.at("ckpt"), "", 1, 1}); });
  EXPECT_NE(message.find("model.activation is gelu here and was silu"), std::string::npos) << message;
  EXPECT_EQ(message.find("rotary"), std::string::npos) << message;
  other.checkpoint.allow = {"model.rotary_base", "model.activation"};
  const Outcome allowed = run_leg(other, {kFour, folder.at("ckpt"), "", 1, 2});
  EXPECT_TRUE(allowed.loaded.loaded);
  EXPECT_NE(allowed.loaded.notes.find("model.rotary_base is 500"), std::string::npos) << allowed.loaded.notes;
  other = saved;
  other.model.attention_dropout = 0.2;
  other.model.init_method_std = 0.5;
  other.model.make_vocab_size_divisible_by = 16;
  other.model.family = "llama";
  EXPECT_TRUE(run_leg(other, {{}, folder.at("ckpt"), "", 1, 2}).loaded.loaded) << "the same function";
}

TEST(TrainingState, ATensorThatNobodyTakesIsAnError) {
  const Folder folder;
  config::Config config = small_gpt();
  run_leg(config, {kEight, "", folder.at("ckpt"), 0, 1});
  config.model.num_layers = 2;
  config.checkpoint.allow = {"model.num_layers"};
  const Outcome fewer = run_leg(config, {{}, folder.at("ckpt"), "", 1, 1});
  EXPECT_NE(fewer.loaded.notes.find("decoder.layers.2."), std::string::npos) << fewer.loaded.notes;
  config = small_gpt();
  config.optim.optimizer = "sgd";
  config.optim.sgd_momentum = 0;
  std::string message = catch_error([&] { run_leg(config, {kFour, folder.at("ckpt"), "", 1, 1}); });
  for (const char* word : {"optim.optimizer", "sgd", "adam", "checkpoint.no_load_optim"})
    EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
  config.checkpoint.no_load_optim = true;
  EXPECT_TRUE(run_leg(config, {kFour, folder.at("ckpt"), "", 1, 1}).loaded.loaded);
  config = small_gpt();
  config.optim.optimizer = "sgd";
  run_leg(config, {{}, "", folder.at("sgd"), 0, 1});
  config.optim.sgd_momentum = 0;  // then its momentum is not loadable
  message = catch_error([&] { run_leg(config, {kFour, folder.at("sgd"), "", 1, 1}); });
  for (const char* word : {"does not use", "momentum_buffer", "more"})
    EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
}

TEST(TrainingState, AFolderOfSomethingElseNeverStartsFromScratch) {
  const Folder folder;
  config::Config config = small_gpt();
  files::PosixFileSystem disk;
  disk.make_directories(folder.at("other"));
  disk.replace_file(folder.at("other") + "/model.bin", "x");
  std::string message = catch_error([&] { run_leg(config, {kFour, folder.at("other"), "", 0, 0}); });
  EXPECT_NE(message.find("model.bin"), std::string::npos) << message;
  config.checkpoint.finetune = true;
  message = catch_error([&] { run_leg(config, {kFour, folder.at("typo"), "", 0, 0}); });
  EXPECT_NE(message.find(folder.at("typo")), std::string::npos) << message;
}

text::TokenizerFiles make_tokenizer(const std::string& checksum) {
  return {"sentencepiece", {{"tokenizer.model", "pieces"}}, checksum};
}

TEST(TrainingState, CarriesItsTokenizerAndRefusesAnother) {
  const Folder folder;
  config::Config config = small_gpt();
  config.checkpoint.save = folder.at("ckpt");
  config.checkpoint.save_interval = 1;
  const auto with = [&](const config::Config& config, std::shared_ptr<const text::TokenizerFiles> tokenizer) {
    return catch_error([&] {
      run_sharded(cut(config, {}), {}, [&](const comm::World& world) {
        const auto assembly = step::assemble(cut(config, {}), world, kVocab);
        if (config.checkpoint.load.empty()) {
          EXPECT_TRUE(
              run::save_state(
                  *assembly,
                  {.iteration = 1, .consumed_train_samples = 8, .scheduled_samples = 8, .tokenizer = tokenizer})
                  .saved);
        } else {
          run::load_state(*assembly, config.checkpoint.load, {.tokenizer = tokenizer});
        }
      });
    });
  };
  EXPECT_EQ(with(config, std::make_shared<text::TokenizerFiles>(make_tokenizer("aa"))), "");
  files::PosixFileSystem disk;
  EXPECT_EQ(disk.read(folder.at("ckpt") + "/iter_0000001/tokenizer.model"), "pieces");
  config.checkpoint.load = folder.at("ckpt");
  EXPECT_EQ(with(config, std::make_shared<text::TokenizerFiles>(make_tokenizer("aa"))), "");
  EXPECT_EQ(with(config, nullptr), "") << "nothing is known of this run's";
  EXPECT_NE(with(config, std::make_shared<text::TokenizerFiles>(make_tokenizer("bb"))).find("data.tokenizer_model"),
            std::string::npos);
  text::TokenizerFiles bytes;
  bytes.type = "bytes";
  EXPECT_NE(with(config, std::make_shared<text::TokenizerFiles>(bytes)).find("data.tokenizer_type is bytes here"),
            std::string::npos);
  config.checkpoint.allow = {"data.tokenizer_model"};
  EXPECT_EQ(with(config, std::make_shared<text::TokenizerFiles>(make_tokenizer("bb"))), "");
}

// Without the members of newer versions, and with an obsolete key.
TEST(TrainingState, OfAnOlderProgramStillLoads) {
  const Folder folder;
  const Outcome saved = run_leg(small_gpt(), {kFour, "", folder.at("ckpt"), 0, 2});
  files::PosixFileSystem disk;
  const std::string path = folder.at("ckpt") + "/iter_0000002/manifest.json";
  files::Manifest manifest = files::parse_manifest(disk.read(path), path);
  ASSERT_TRUE(manifest.parent.has_value());
  manifest.parent.reset();
  manifest.config_yaml.replace(manifest.config_yaml.find("model:\n"), 7, "model:\n  long_gone: 3\n");
  ASSERT_EQ(manifest.extra.find("\"tokenizer\""), std::string::npos);
  disk.replace_file(path, files::write_manifest(manifest));
  expect_equal_state(run_leg(small_gpt(), {{}, folder.at("ckpt"), "", 2, 2}).state, saved.state);
}

// Back to 5 and on: the history is that of the run, and the folder holds no more checkpoints than configured.
TEST(TrainingState, GoingBackLeavesABranchAndSaysSo) {
  const Folder folder;
  const std::string root = folder.at("ckpt");
  config::Config config = small_gpt();
  config.checkpoint.save = config.checkpoint.load = root;
  config.checkpoint.save_interval = 1;
  config = cut(config, {});
  run_sharded(config, {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    run::Position position;
    for (int64_t i = 1; i <= 10; ++i) {
      position = {i, 8 * i, 8 * i, 0, position.checkpoint};
      const auto saved = run::save_state(*assembly, position);
      position.checkpoint = saved.path;
      EXPECT_EQ(saved.note, "");
    }
    assembly->process.config.checkpoint.ckpt_step = 5;
    const run::LoadOutcome loaded = run::load_state(*assembly, root);
    EXPECT_NE(loaded.later_branch.find("iter_0000010"), std::string::npos) << loaded.later_branch;
    EXPECT_EQ(loaded.later_branch.find("iter_0000005"), std::string::npos) << loaded.later_branch;
    assembly->process.config.checkpoint.keep_last = 2;
    const auto saved = run::save_state(*assembly, {6, 48, 48, 0, loaded.position.checkpoint});
    EXPECT_NE(saved.note.find("iter_0000010, iter_0000009"), std::string::npos) << saved.note;
    files::PosixFileSystem disk;
    const auto names = checkpoint::list_checkpoints(disk, root);
    ASSERT_EQ(names.size(), 2u);
    EXPECT_EQ(names[0].iteration, 5);
    EXPECT_EQ(names[1].iteration, 6);
  });
}

TEST(TrainingState, NoCheckpointIsAFreshStartOrAnErrorAsAsked) {
  const Folder folder;
  config::Config config = small_gpt();
  EXPECT_FALSE(run_leg(config, {{}, folder.at("none"), folder.at("new"), 0, 0}).loaded.loaded);
  EXPECT_NE(catch_error([&] { run_leg(config, {{}, folder.at("none"), "", 0, 0}); }), "") << "it saves nowhere";
  config.checkpoint.exit_on_missing_checkpoint = true;
  const std::string message = catch_error([&] { run_leg(config, {kFour, folder.at("none"), "", 0, 0}); });
  EXPECT_NE(message.find(folder.at("none")), std::string::npos) << message;
}

TEST(TrainingState, ASaveThatFailsSaysWhyOnEveryRankAndTheRunGoesOn) {
  const TestLayout layout{1, 1, 1, 2, false};
  config::Config config = small_gpt();
  config.checkpoint.save = "/dev/null/nowhere";
  config.checkpoint.save_interval = 1;
  config = cut(config, layout);
  run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const auto outcome = run::save_state(*assembly, {1, 8, 0});
    EXPECT_FALSE(outcome.saved);
    EXPECT_NE(outcome.problem.find("'/dev/null'"), std::string::npos) << outcome.problem;
    EXPECT_GT(step_at(*assembly, 0).loss, 0.0);
  });
}

}  // namespace
}  // namespace metroplex::test::state_ranks_test

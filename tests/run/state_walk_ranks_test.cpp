// Saves and loads a run's state in every precision, with and without skipped steps before the save. Each resumed run
// is compared with the uninterrupted one, step by step and byte by byte. A run that loads only weights is compared
// with a hand-written loop.
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>

#include "base/log.h"
#include "files/file_system.h"
#include "run/legs.h"
#include "run/run_data.h"
#include "run/trainer.h"
#include "run/posix_disk.h"
#include "run/same_tensors.h"
#include "run/small_corpus.h"

namespace metroplex::test::state_walk_ranks_test {
namespace {

using Json = nlohmann::json;

constexpr int64_t kSteps = 9, kEarly = 1, kMiddle = 5, kBatch = 4;
// The same gradients summed in the same order: stages and ZeRO shard the sums but keep their order.
constexpr TestLayout kHere{.dp = 2}, kElsewhere{.pp = 2, .dp = 2};

struct Case {
  const char* dtype;
  bool skips, experts;
};
void PrintTo(const Case& test_case, std::ostream* out) {
  *out << test_case.dtype << (test_case.skips ? ", skips" : "") << (test_case.experts ? ", experts" : "");
}

// Learning rate and weight decay change with every update. No clipping, because it would propagate the summation
// order of the norm into the weights.
config::Config make_config(const Case& test_case) {
  config::Config config = small_gpt();
  config.model.num_layers = 2;
  config.model.untie_embeddings_and_output_weights = true;  // one use, one sum
  config.model.make_vocab_size_divisible_by = 2;            // no padding
  if (test_case.experts) {
    config.model.num_moe_experts = 4;
    config.model.ffn_hidden_size = 16;
    config.model.add_bias_linear = false;
    config.model.moe_router_score_function = "sigmoid";
    config.model.moe_router_enable_expert_bias = true;
    config.model.moe_router_load_balancing_type = "seq_aux_loss";
    config.model.moe_aux_loss_coeff = "0.01";
  }
  config.train.train_iters = kSteps;
  config.train.global_batch_size = kBatch;
  config.optim.lr_decay_style = "linear";
  config.optim.lr_warmup_iters = 0;
  config.optim.clip_grad = 0;
  config.optim.weight_decay_incr_style = "linear";
  config.optim.start_weight_decay = 0.01;
  config.optim.end_weight_decay = 0.2;
  config.parallel.data_parallel_sharding_strategy = "optim";
  config.precision.params_dtype = test_case.dtype;
  config.precision.initial_loss_scale = 1024;
  config.precision.loss_scale_window = 3;
  config.precision.hysteresis = 3;
  const bool scales = std::string(test_case.dtype) == "fp16";
  // Twice the largest scale that fits the first gradients; or between their norms.
  if (test_case.skips && scales) config.precision.initial_loss_scale = test_case.experts ? 524288 : 262144;
  if (test_case.skips && !scales) config.precision.grad_norm_skip_threshold = test_case.experts ? 1.2 : 1.45;
  config.checkpoint.save_interval = 1;
  return config;
}

struct Step {
  double loss = 0, lr = 0, norm = 0, scale = 0;
  bool skipped = false;
  bool operator==(const Step&) const = default;
};
void PrintTo(const Step& step, std::ostream* out) {
  *out << "loss " << step.loss << " lr " << step.lr << " norm " << step.norm << " scale " << step.scale
       << (step.skipped ? " skipped" : "");
}
double finite_or_minus_one(double number) { return std::isfinite(number) ? number : -1; }

std::vector<Step> read_steps(const std::string& path) {
  std::ifstream file(path);
  std::vector<Step> steps;
  for (std::string text; std::getline(file, text);) {
    const Json line = Json::parse(text);
    const auto number = [&](const char* name) { return line.at(name).is_null() ? -1 : line.at(name).get<double>(); };
    steps.push_back({number("lm loss"), number("learning-rate"), number("grad-norm"), number("loss-scale"),
                     line.contains("skipped")});
  }
  return steps;
}

class Runs {
 public:
  explicit Runs(const Case& test_case) : config(make_config(test_case)) { use_small_corpus(config, folder_); }

  std::string folder(const std::string& name) const { return folder_.at(name); }
  std::string at(const std::string& name, int64_t iteration) const {
    return folder(name) + "/iter_000000" + std::to_string(iteration);
  }

  std::vector<Step> train(const std::string& name, const std::string& load, const TestLayout& layout = kHere,
                          const std::function<void(config::Config&)>& change = {}) const {
    config::Config settings = config;
    settings.checkpoint.load = load;
    settings.checkpoint.save = folder(name);
    settings.train.metrics_file = folder_.at(name + ".jsonl" + std::to_string(++times_));
    if (change) change(settings);
    settings = cut(settings, layout);
    run_sharded(settings, layout, [&](const comm::World& world) {
      base::NullLog log;
      run::run_training(settings, world, {kVocab, kVocab - 1, nullptr},
                        {&log, std::make_shared<files::PosixFileSystem>(), {}, {}});
    });
    return read_steps(settings.train.metrics_file);
  }

  files::Manifest manifest(const std::string& directory) const {
    files::PosixFileSystem disk;
    const std::string path = directory + "/manifest.json";
    return files::parse_manifest(disk.read(path), path);
  }

  config::Config config;

 private:
  Folder folder_;
  mutable int times_ = 0;
};

std::vector<Step> tail(const std::vector<Step>& steps, int64_t from) { return {steps.begin() + from, steps.end()}; }

// Rates are a function of the samples of the updates so far.
void expect_rates(const config::Config& config, const std::vector<Step>& steps, int64_t scheduled) {
  const optim::LrSchedule schedule(optim::schedule_args(config));
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].lr, schedule.lr(scheduled))
        << "step " << i << ", " << scheduled << " samples of updates before it";
    if (!steps[i].skipped) scheduled += kBatch;
  }
}

int64_t updates(const std::vector<Step>& steps, size_t from, size_t to) {
  return std::count_if(steps.begin() + from, steps.begin() + to, [](const Step& step) { return !step.skipped; });
}

// All but the configuration, which contains folder names.
void expect_same_position(const files::Manifest& got, const files::Manifest& wanted) {
  EXPECT_EQ(got.iteration, wanted.iteration);
  EXPECT_EQ(got.consumed_samples, wanted.consumed_samples);
  EXPECT_EQ(Json::parse(got.extra), Json::parse(wanted.extra));
}

double read_scale(const config::Config& config) {
  return config.precision.scales_loss() ? config.precision.initial_loss_scale : 1;
}

void expect_same_bytes(const Runs& runs, const std::string& got, const std::string& wanted) {
  const files::Manifest a = runs.manifest(got), b = runs.manifest(wanted);
  expect_same_position(a, b);
  ASSERT_EQ(a.files.size(), b.files.size());
  files::PosixFileSystem disk;
  for (size_t i = 0; i < b.files.size(); ++i) {
    ASSERT_EQ(a.files[i].name, b.files[i].name);
    EXPECT_TRUE(disk.read(got + "/" + a.files[i].name) == disk.read(wanted + "/" + b.files[i].name))
        << b.files[i].name;
  }
  expect_same_tensors(got, wanted);
}

// Another layout sums the parts of a norm in another order in double precision: fewer than 16,000 squares, none below
// 0, in 16 lanes. The relative error of a sum is at most 1,016 * 2^-53, of the root half of that: two together
// 1.2e-13.
void expect_close_norms(std::vector<Step> got, std::vector<Step> wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(got[i].norm, wanted[i].norm, 2e-13 * std::abs(wanted[i].norm));
    got[i].norm = wanted[i].norm;
  }
  EXPECT_EQ(got, wanted);
}

State whole(const Runs& runs, const std::string& directory) {
  config::Config config = runs.config;
  config.checkpoint.save_interval = 0;
  return run_leg(config, {{}, directory, "", 0, 0}).state;
}

// `whole` becomes the weights, the main parameters and the buffers; moments stay zero.
void take_over(step::Assembly& assembly, const State& whole) {
  assembly.model.families.finish_gathers();
  for (nn::Param* param : assembly.model.params) param->data.copy_(whole.at(param->name).view_as(param->data));
  assembly.optimization.optimizer->copy_from_params();
  for (const optim::State& state : assembly.optimization.optimizer->state()) {
    if (state.kind != "main") continue;
    assembly.optimization.optimizer->restore(
        state, whole.at(state.param->name + " main").view(-1).slice(0, state.begin, state.end));
  }
  for (nn::Buffer* buffer : assembly.model.buffers) buffer->data.copy_(whole.at(buffer->name).view_as(buffer->data));
  assembly.model.families.loaded();
}

struct ByHand {
  run::Position start;
  std::string save;
};

// A training loop without loading and without the trainer's counters.
std::vector<Step> run_by_hand(const config::Config& base, const State& weights, const ByHand& hand) {
  config::Config config = base;
  config.checkpoint.save = hand.save;
  config = cut(config, kHere);
  std::vector<Step> steps;
  run_sharded(config, kHere, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    take_over(*assembly, weights);
    const auto schedule = step::microbatch_schedule(config, kHere.dp);
    const run::RunData data(assembly->process, step::run_length(config, schedule), {kVocab, kVocab - 1, nullptr},
                            false, std::make_shared<files::PosixFileSystem>());
    run::Position at = hand.start;
    at.train_order = data.train_order();
    step::BatchStream stream = data.stream(run::kTrain, at.consumed_train_samples);
    std::vector<Step> mine;
    while (at.iteration < kSteps) {
      const auto batches =
          data.next(stream, {kBatch / kHere.dp, at.consumed_train_samples, at.iteration, run::kTrain});
      const auto o = step::train_step(*assembly, {batches, at.iteration + 1, at.scheduled_samples, false, {}});
      mine.push_back({o.loss, o.lr, finite_or_minus_one(o.grad_norm), o.loss_scale, !o.updated});
      ++at.iteration;
      at.consumed_train_samples += kBatch;
      (o.updated ? at.scheduled_samples : at.skipped_iterations) += o.updated ? kBatch : 1;
    }
    EXPECT_TRUE(run::save_state(*assembly, at).saved);
    if (world.rank() == 0) steps = mine;
  });
  return steps;
}

// Every matrix or table has changed, and none by more than its updates allow: an Adam update is at most a few times
// the rate. Weights from another source would differ by about init_method_std.
void expect_small_moves(const State& from, const State& to, double lr, int64_t updates) {
  for (const auto& [name, before] : from) {
    if (!name.ends_with(".weight") || name.find(' ') != std::string::npos) continue;
    const double moved = (to.at(name).to(at::kDouble) - before.to(at::kDouble)).abs().max().item<double>();
    EXPECT_GT(moved, 0.0) << name << " never moved";
    EXPECT_LT(moved, 4 * lr * static_cast<double>(updates)) << name;
  }
}

// Updates before and after the save; skipped steps before it exactly if the case has them.
void expect_skips(const Case& test_case, const std::vector<Step>& steps) {
  const int64_t before = updates(steps, 0, kMiddle), after = updates(steps, kMiddle, kSteps);
  EXPECT_GT(before, 0);
  EXPECT_GT(after, 0);
  if (test_case.skips) {
    EXPECT_LT(before, kMiddle);
  } else {
    EXPECT_EQ(before, kMiddle);
  }
}

// Resumes into other folders, from an early save and from one in the middle; the first save has no parent.
void resume_elsewhere(const Runs& runs, const std::vector<Step>& straight) {
  for (const int64_t from : {kEarly, kMiddle}) {
    SCOPED_TRACE("resumed in another folder from " + std::to_string(from));
    const std::string name = "from_" + std::to_string(from);
    EXPECT_EQ(runs.train(name, runs.at("straight", from)), tail(straight, from));
    expect_same_bytes(runs, runs.at(name, kSteps), runs.at("straight", kSteps));
    EXPECT_EQ(runs.manifest(runs.at(name, from + 1)).parent, "");
    EXPECT_EQ(runs.manifest(runs.at(name, kSteps)).parent, "iter_0000008");
  }
}

void resume_on_another_layout(const Runs& runs, const std::vector<Step>& straight) {
  SCOPED_TRACE("resumed on another layout, and back");
  const std::string there = runs.at("there", kMiddle + 2), end = runs.at("back", kSteps);
  const auto part = [](config::Config& config) { config.train.exit_interval = kMiddle + 2; };
  const auto first = runs.train("there", runs.at("straight", kMiddle), kElsewhere, part);
  expect_close_norms(first, {straight.begin() + kMiddle, straight.begin() + kMiddle + 2});
  expect_same_tensors(there, runs.at("straight", kMiddle + 2));
  expect_same_position(runs.manifest(there), runs.manifest(runs.at("straight", kMiddle + 2)));
  EXPECT_EQ(runs.train("back", there), tail(straight, kMiddle + 2));
  expect_same_bytes(runs, end, runs.at("straight", kSteps));
}

void resume_in_place(const Runs& runs, const std::vector<Step>& straight) {
  SCOPED_TRACE("stopped and resumed in its own folder");
  const auto part = [](config::Config& config) { config.train.exit_interval = kMiddle; };
  EXPECT_EQ(runs.train("place", "", kHere, part), (std::vector<Step>{straight.begin(), straight.begin() + kMiddle}));
  EXPECT_EQ(runs.train("place", runs.folder("place")), tail(straight, kMiddle));
  expect_same_bytes(runs, runs.at("place", kSteps), runs.at("straight", kSteps));
  EXPECT_EQ(runs.manifest(runs.at("place", kMiddle + 1)).parent, "iter_0000005");
}

// Loads only the weights, at iteration 0 or at the saved iteration.
void take_weights(const Runs& runs, bool finetune) {
  SCOPED_TRACE(finetune ? "finetune" : "no_load_optim");
  const std::string name = finetune ? "finetuned" : "without_moments", saved = runs.at("straight", kMiddle);
  const State weights = whole(runs, saved);
  const files::Manifest manifest = runs.manifest(saved);
  const Json extra = Json::parse(manifest.extra);
  run::Position start;
  if (!finetune)
    start = {manifest.iteration, manifest.consumed_samples, extra.at("scheduled_samples"),
             extra.at("skipped_iterations")};
  const auto by_hand = run_by_hand(runs.config, weights, {start, runs.folder(name + "_by_hand")});
  const auto got = runs.train(name, saved, kHere, [&](config::Config& config) {
    config.checkpoint.finetune = finetune;
    config.checkpoint.no_load_optim = !finetune;
  });
  EXPECT_EQ(got, by_hand);
  EXPECT_EQ(got.size(), static_cast<size_t>(finetune ? kSteps : kSteps - kMiddle));
  expect_rates(runs.config, got, finetune ? 0 : start.scheduled_samples);
  EXPECT_EQ(got.at(0).scale, read_scale(runs.config)) << "the loss scale starts anew";
  expect_same_bytes(runs, runs.at(name, kSteps), runs.at(name + "_by_hand", kSteps));
  expect_small_moves(weights, whole(runs, runs.at(name, kSteps)), runs.config.optim.lr, updates(got, 0, got.size()));
  EXPECT_EQ(runs.manifest(runs.at(name, finetune ? 1 : kMiddle + 1)).parent, "");
}

class StateWalk : public testing::TestWithParam<Case> {};

TEST_P(StateWalk, RunsThatGoOnAreTheRunThatNeverStopped) {
  const Runs runs(GetParam());
  const std::vector<Step> straight = runs.train("straight", "");
  ASSERT_EQ(straight.size(), static_cast<size_t>(kSteps));
  expect_skips(GetParam(), straight);
  expect_rates(runs.config, straight, 0);
  resume_elsewhere(runs, straight);
  resume_on_another_layout(runs, straight);
  resume_in_place(runs, straight);
  take_weights(runs, true);
  take_weights(runs, false);
  if (HasFailure()) ADD_FAILURE() << "the run that never stopped: " << testing::PrintToString(straight);
}

const char* word(bool is, const char* yes, const char* no) { return is ? yes : no; }

INSTANTIATE_TEST_SUITE_P(All, StateWalk, testing::ValuesIn([] {
                           std::vector<Case> cases;
                           for (const char* dtype : {"fp32", "bf16", "fp16"}) {
                             for (const bool skips : {false, true}) {
                               for (const bool experts : {false, true}) cases.push_back({dtype, skips, experts});
                             }
                           }
                           return cases;
                         }()),
                         [](const auto& info) {
                           return std::string(info.param.dtype) +
                                  word(info.param.skips, "WithSkips", "WithoutSkips") +
                                  word(info.param.experts, "AndExperts", "");
                         });

}  // namespace
}  // namespace metroplex::test::state_walk_ranks_test

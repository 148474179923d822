// train.machine: the parts of a measured step, their comparison with the prediction, and the warning.
#include "run/step_times.h"

#include <set>
#include <thread>

#include "forecast/step_price.h"
#include "run/step_time_report.h"
#include "run/traced_runs.h"
#include "support/run_ranks.h"

namespace metroplex::test::step_times_ranks_test {
namespace {

using nlohmann::json;
using run::PartDetail;
using run::StepComparison;

void sleep_ms(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST(StepTimes, ComparesEqualParts) {
  const replay::RankTimes predicted{1, 2, 4, 8, {{"layers", 16}, {"gradients", 32}}, 64};
  const run::StepParts measured{127.5, 1.5, 6, 48, 64};
  const StepComparison all{3, 1, 1, run::compare_parts(predicted, measured, PartDetail::all)};
  EXPECT_EQ(run::to_string(all),
            " predicted / measured step of rank 1 (ms): forward 1000.0 / 1500.0 | backward 6000.0 / 6000.0 | update "
            "8000.0 / 8000.0 | communication 48000.0 / 48000.0 | waits 64000.0 / 64000.0 | step 127000.0 / 127500.0");
  const StepComparison compute{3, 1, 0, run::compare_parts(predicted, measured, PartDetail::compute)};
  EXPECT_EQ(
      run::to_string(compute),
      " predicted / measured step of rank 0 (ms): compute 15000.0 / 15500.0 | communication 48000.0 / 48000.0 | "
      "waits 64000.0 / 64000.0 | step 127000.0 / 127500.0");
  const StepComparison step{3, 1, 0, run::compare_parts(predicted, measured, PartDetail::step)};
  EXPECT_EQ(run::to_string(step), " predicted / measured step of rank 0 (ms): step 127000.0 / 127500.0");
}

// The error bar is 10 % of a predicted step of 10 s: 1 s.
TEST(StepTimes, NamesTheLargestDifference) {
  struct Case {
    const char* part;  // "": no warning
    double forward, backward;
  };
  for (const Case& one : {Case{"", 4, 6}, Case{"", 4.9, 6.05}, Case{"forward", 5.1, 6}, Case{"backward", 4, 4.9},
                          Case{"backward", 4.6, 6.7},  // only the step exceeds the bar
                          Case{"backward", 6, 3}, Case{"forward", 7, 4}}) {
    const StepComparison comparison{
        2,
        1,
        0,
        {{"forward", 4, one.forward}, {"backward", 6, one.backward}, {"step", 10, one.forward + one.backward}}};
    const run::PartTime* const part = run::find_difference(comparison, 0.1);
    EXPECT_EQ(part == nullptr ? "" : part->name, one.part) << one.forward << " " << one.backward;
  }
  const StepComparison gpu{2, 1, 0, {{"step", 10, 12}}};
  ASSERT_NE(run::find_difference(gpu, 0.1), nullptr);
  EXPECT_EQ(run::find_difference(gpu, 0.1)->name, "step");
}

// Every part is at least as long as its sleeps, so no sleep counts in another part.
TEST(StepTimes, AssignsTimeToParts) {
  run_ranks(2, {.pp = 2}, [](const comm::World& world) {
    run::RankRecorder recorder;
    world.with_recorded_groups(recorder);
    recorder.joins("inside", "layers", {world.rank()});
    const auto call = [&](const char* group, int64_t ms) {
      recorder.run({"all_reduce", group, {}, {}, {}, [ms] { sleep_ms(ms); }});
    };
    run::StepTimer timer(recorder, world);
    timer.after_action({plan::ActionKind::forward});  // of an evaluation
    timer.begin_step();
    sleep_ms(10);
    call("inside", 40);
    call("pp", 20);
    call("world", 15);
    timer.after_action({plan::ActionKind::forward});
    sleep_ms(20);
    timer.after_action({plan::ActionKind::recv_backward});
    sleep_ms(20);
    timer.after_action({plan::ActionKind::backward});
    sleep_ms(10);
    timer.after_action({plan::ActionKind::weight});
    plan::Action in_turns{plan::ActionKind::forward};
    in_turns.in_turns = true;
    sleep_ms(60);
    timer.after_action(in_turns);
    timer.after_action({plan::ActionKind::backward});
    call("inside", 10);
    timer.begin_loading();
    sleep_ms(150);
    call("inside", 150);
    call("pp", 150);
    timer.end_loading();
    sleep_ms(25);
    const run::StepParts parts = timer.end_step();
    EXPECT_GE(parts.forward, 0.040);
    EXPECT_GE(parts.backward, 0.080);
    EXPECT_GE(parts.communication, 0.050);
    EXPECT_GE(parts.waits, 0.035);
    EXPECT_GE(parts.update(), 0.025);
    EXPECT_LT(parts.step, 0.230 + 0.140) << "one of the three loads of 150 ms counts";
  });
}

// Ten times faster than the CPUs of this project.
void use_fast_machine(config::Config& config, const Folder& folder, const std::string& error) {
  config.train.machine = folder.at("machine.yaml");
  std::ofstream(config.train.machine)
      << "device: {peak_flops: {fp64: 500e9, fp32: 500e9}, memory_bytes_per_s: 100e9}\n"
         "links: [{name: memory, ranks: 0, latency_s: 1e-7, bytes_per_s: 50e9}]\nerror: "
      << error << "\n";
}

TracedRun make_run(const Folder& folder, const TestLayout& layout, const std::string& error = "0.1") {
  TracedRun run{small_gpt(), layout};
  use_small_corpus(run.config, folder);
  use_fast_machine(run.config, folder, error);
  run.config.train.train_iters = 6;
  run.config.train.log_interval = 2;
  run.config.train.metrics_file = folder.at("metrics.jsonl");
  return run;
}

std::vector<json> lines_with(const Folder& folder, const char* key) {
  std::vector<json> lines;
  std::ifstream file(folder.at("metrics.jsonl"));
  for (std::string line; std::getline(file, line);) {
    const json values = json::parse(line);
    if (values.contains(key)) lines.push_back(key == std::string("time") ? values.at(key) : values);
  }
  return lines;
}

double sum_of_parts(const json& times) {
  double sum = 0;
  for (const auto& [name, value] : times.items()) sum += name == "step" ? 0 : value.get<double>();
  return sum;
}

void expect_line(const json& line, const TracedRun& run) {
  const json &predicted = line.at("predicted"), &measured = line.at("measured");
  EXPECT_EQ(line.at("steps"), 2);
  EXPECT_NEAR(sum_of_parts(predicted), predicted.at("step").get<double>(), 1e-9);
  EXPECT_NEAR(sum_of_parts(measured), measured.at("step").get<double>(), 1e-9);
  for (const char* name : {"forward", "backward", "update"}) EXPECT_GT(measured.at(name), 0) << name;
  EXPECT_EQ(measured.at("communication") > 1e-9, run.layout.dp > 1) << measured;
  EXPECT_EQ(measured.at("waits") > 1e-9, run.layout.pp > 1) << measured;
  const config::Config config = cut(run.config, run.layout);
  const replay::StepTime time =
      forecast::price_step({config, static_cast<int>(run.layout.ranks()), 0, kVocab, 8 / run.layout.dp, at::kCPU},
                           price::find_machine(config.train.machine));
  const size_t stage = run.layout.pp > 1 ? line.at("rank").get<size_t>() : 0;
  EXPECT_NEAR(predicted.at("forward").get<double>(), time.ranks.at(stage).forward, 1e-9) << "rank " << stage;
}

// The clock of the metrics file also counts the loader and the reports.
TEST(StepTimes, AreLoggedEveryInterval) {
  for (const TestLayout layout : {TestLayout{}, TestLayout{.dp = 2}, TestLayout{.pp = 2}}) {
    const Folder folder;
    const TracedRun run = make_run(folder, layout);
    const KeptLog log = train(run);
    const std::vector<json> lines = lines_with(folder, "time"), steps = lines_with(folder, "iteration");
    ASSERT_EQ(lines.size(), 2u) << log.lines << "the first interval has one-time work";
    ASSERT_EQ(steps.size(), 6u);
    for (size_t i = 0; i < 2; ++i) {
      expect_line(lines[i], run);
      const size_t last = 3 + 2 * i;
      EXPECT_EQ(lines[i].at("iteration"), last + 1);
      const double whole =
          steps[last - 1].at("iteration-time").get<double>() + steps[last].at("iteration-time").get<double>();
      if (layout.ranks() > 1) continue;  // the file has the times of rank 0, but another rank can be the slowest
      EXPECT_LT(lines[i].at("measured").at("step").get<double>(), whole / 2);
      EXPECT_GT(lines[i].at("measured").at("step").get<double>(), whole / 8) << "a step is mostly computation";
    }
    EXPECT_NE(log.lines.find(" predicted / measured step of rank "), std::string::npos) << log.lines;
  }
}

std::vector<std::string> machine_warnings(const KeptLog& log) {
  std::vector<std::string> warnings;
  std::istringstream lines(log.warnings);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("train.machine = ")) warnings.push_back(line);
  }
  return warnings;
}

TEST(StepTimes, WarnOncePerPart) {
  const Folder folder, other;
  TracedRun run = make_run(folder, {.dp = 2});
  run.config.train.train_iters = 16;
  const std::vector<std::string> warnings = machine_warnings(train(run));
  ASSERT_FALSE(warnings.empty());
  std::set<std::string> parts;
  for (const std::string& warning : warnings) {
    const std::string words = "the largest difference has ";
    const size_t begin = warning.find(words) + words.size(), end = warning.find(':', begin);
    EXPECT_NE(warning.find(" ms +- 10 %; " + words), std::string::npos) << warning;
    EXPECT_TRUE(parts.insert(warning.substr(begin, end - begin)).second) << warning;
  }
  // The prediction is far above the measured times, and an error of 1 accepts any faster step.
  const std::string slow = "1\nissue: {library_call_s: 1, own_call_s: 1}";
  EXPECT_TRUE(machine_warnings(train(make_run(other, {.dp = 2}, slow))).empty());
}

// Rank 0 takes 200 ms to log a comparison. Rank 1 has three of four layers, so it has the longest computing time.
class SlowLog final : public base::Log {
 public:
  void info(const std::string& line) override {
    if (line.starts_with(" predicted / measured ")) sleep_ms(200);
    kept.info(line);
  }
  void warn(const std::string& line) override { kept.warn(line); }
  KeptLog kept;
};

TEST(StepTimes, ExcludeTheReports) {
  const Folder folder;
  TracedRun run = make_run(folder, {.pp = 2});
  run.config.parallel.decoder_first_pipeline_num_layers = 1;
  run.config.train.log_interval = 1;
  run.config.train.train_iters = 10;
  const config::Config config = cut(run.config, run.layout);
  comm::run_threads(2, topology::RankGrid(2, config.parallel), {std::chrono::seconds(60)},
                    [&](const comm::World& world) {
                      SlowLog log;
                      run::run_training(config, world, {kVocab, kVocab - 1, nullptr}, {&log, run.disk, {}, {}});
                    });
  const std::vector<json> lines = lines_with(folder, "time");
  ASSERT_EQ(lines.size(), 8u);
  double shortest = 1;
  int compared = 0;
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].at("rank") == 0) continue;  // on a loaded machine
    shortest = std::min(shortest, lines[i].at("measured").at("step").get<double>());
    ++compared;
  }
  EXPECT_GT(compared, 0);
  EXPECT_LT(shortest, 0.15);
}

TEST(StepTimes, ChangeNoResult) {
  const Folder folder, other;
  train(make_run(folder, {.dp = 2}));
  TracedRun plain = make_run(other, {.dp = 2});
  plain.config.train.machine.clear();
  EXPECT_EQ(train(plain).lines.find("predicted / measured"), std::string::npos);
  EXPECT_EQ(read_results(folder.at("metrics.jsonl")), read_results(other.at("metrics.jsonl")));
}

// 4 samples per step until 24 samples, then 8.
TEST(StepTimes, FollowTheNumberOfMicrobatches) {
  const Folder folder;
  TracedRun run = make_run(folder, {});
  run.config.train.global_batch_size = 0;
  run.config.train.step_batch_size_schedule = "0:4 192:8";
  run.config.train.train_iters = 12;
  run.config.train.log_interval = 3;
  run.config.train.eval_interval = 3;
  run.config.train.eval_iters = 2;
  run.config.data.split = "1,1";
  train(run);
  const std::vector<json> lines = lines_with(folder, "time");
  ASSERT_EQ(lines.size(), 4u);
  const int64_t steps[] = {1, 3, 1, 3};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(lines[i].at("steps"), steps[i]) << i;
  const auto predicted = [&](size_t i) { return lines[i].at("predicted").at("forward").get<double>(); };
  EXPECT_EQ(predicted(0), predicted(1));
  EXPECT_NEAR(predicted(2), 2 * predicted(1), 0.1 * predicted(1)) << "8 microbatches instead of 4";
}

TEST(StepTimes, MeasureCapturedSteps) {
  for (const config::CudaGraphImpl impl : {config::CudaGraphImpl::local, config::CudaGraphImpl::full_iteration}) {
    const Folder folder;
    TracedRun run = make_run(folder, {.dp = 2});
    run.config.train.cuda_graph_impl = impl;
    run.config.train.cuda_graph_warmup_steps = 1;
    train(run);
    const std::vector<json> lines = lines_with(folder, "time");
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0].at("steps"), 1) << "an eager step, the memory report, and the capture are ignored";
    const json& measured = lines[1].at("measured");
    EXPECT_EQ(measured.contains("compute"), impl == config::CudaGraphImpl::full_iteration) << measured;
    EXPECT_EQ(measured.contains("forward"), impl == config::CudaGraphImpl::local) << measured;
    EXPECT_GT(measured.at("communication"), 0) << "group calls of a replay count";
    EXPECT_NEAR(sum_of_parts(measured), measured.at("step").get<double>(), 1e-9);
  }
}

TEST(StepTimes, NeedAKnownMachine) {
  const Folder folder;
  TracedRun run = make_run(folder, {});
  run.config.train.machine = "h1000";
  run.config.checkpoint.save = folder.at("checkpoints");
  try {
    train(run);
    ADD_FAILURE() << "a run with an unknown machine starts";
  } catch (const base::Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("train.machine = h1000: no machine 'h1000': must be a built-in name (a100"),
        std::string::npos)
        << error.what();
  }
  EXPECT_FALSE(run.disk->file_size(folder.at("metrics.jsonl")).has_value());
  EXPECT_FALSE(run.disk->is_directory(folder.at("checkpoints"))) << "the machine is read before anything is written";
}

}  // namespace
}  // namespace metroplex::test::step_times_ranks_test

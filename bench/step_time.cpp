// Prints predicted and measured step times of small models on this CPU: ranks are threads on the virtual clock. One
// calibration serves all configurations. The fastest of some steps counts, as in a calibration.
//   step_time [--machine FILE] [--save FILE] [--steps 5] [--rounds 3] [--only NAME]
#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "clock/virtual_clock.h"
#include "comm/collectives.h"
#include "comm/launch.h"
#include "config/load.h"
#include "config/validate.h"
#include "forecast/calibrate.h"
#include "forecast/step_price.h"
#include "step/batch.h"
#include "step/step.h"
#include "step_cases.h"
#include "timing.h"

namespace {

using namespace metroplex;
using bench::Case;
using bench::cases;
using bench::make_config;

struct StepSeconds {
  double all = 0, compute = 0;  // of rank 0
};

void keep_faster(StepSeconds& step, const StepSeconds& other) {
  if (other.all < step.all) step = other;
}

StepSeconds measure(const config::Config& config, int ranks, const price::LinkCost& link, int steps) {
  const auto clock = std::make_shared<clock::VirtualClock>(ranks, link);
  StepSeconds fastest{INFINITY, INFINITY};
  comm::run_threads(
      ranks, topology::RankGrid(ranks, config.parallel), {.observer = clock}, [&](const comm::World& world) {
        auto assembly = step::assemble(config, world, config.model.vocab_size);
        const int64_t dp = world.groups().dp.size(),
                      count = config.train.global_batch_size / (config.train.micro_batch_size * dp);
        const std::vector<nn::Microbatch> batches(static_cast<size_t>(count), bench::make_batch(config, world));
        for (int64_t step = 0; step < steps + 2; ++step) {
          comm::barrier(world.groups().world);
          const clock::RankTime start = clock->of(world.rank());
          step::train_step(*assembly, {batches, step + 1, step, false, {}});
          comm::barrier(world.groups().world);
          const clock::RankTime passed = clock->of(world.rank()) - start;
          if (step < 2 || world.rank() != 0) continue;
          keep_faster(fastest, {passed.total_s(), passed.compute_s});
        }
      });
  return fastest;
}

// Prints measured and predicted times of the operators of a step on rank 0.
void print_operators(const config::Config& config, int ranks, const price::Machine& machine) {
  forecast::MeasuredStep step;
  comm::run_threads(ranks, topology::RankGrid(ranks, config.parallel), {}, [&](const comm::World& world) {
    forecast::MeasuredStep own = forecast::measure_step(config, world, bench::make_batch(config, world), 3);
    if (world.rank() == 0) step = std::move(own);
  });
  struct Sum {
    double measured = 0, predicted = 0;
    int count = 0;
  };
  std::map<std::string, Sum> sums;
  Sum all;
  for (const replay::TraceOperation& one : step.operators) {
    if (!one.group.empty()) continue;
    char key[128];
    std::snprintf(key, sizeof key, "%s %s %.3g FLOP %.3g bytes", one.name.c_str(), one.dtype.c_str(), one.flops,
                  static_cast<double>(one.bytes));
    const double predicted =
        price::operator_seconds(machine, {one.name, one.dtype, one.flops, static_cast<double>(one.bytes)});
    for (Sum* sum : {&sums[key], &all}) sum->measured += one.seconds, sum->predicted += predicted, ++sum->count;
  }
  for (const auto& [name, sum] : sums)
    if (sum.measured > 0.002 * all.measured)
      std::printf("    %-60s %5d measured %8.3f predicted %8.3f ms\n", name.c_str(), sum.count, sum.measured * 1e3,
                  sum.predicted * 1e3);
  std::printf("    all %d measured %.3f predicted %.3f, step %.3f ms\n", all.count, all.measured * 1e3,
              all.predicted * 1e3, step.step_s * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("step_time");
  std::string machine_file, save, only;
  int steps = 5, rounds = 3;
  app.add_option("--machine", machine_file);
  app.add_option("--save", save);
  app.add_option("--steps", steps);
  app.add_option("--rounds", rounds);
  app.add_option("--only", only);
  bool breakdown = false;
  app.add_flag("--operators", breakdown);
  std::string file;
  int ranks = 1;
  app.add_option("--config", file);
  app.add_option("--ranks", ranks);
  CLI11_PARSE(app, argc, argv);
  bench::use_run_settings(argv);
  at::set_num_threads(1);
  const price::LinkCost link{20e-6, 1e9};
  price::Machine machine =
      machine_file.empty()
          ? forecast::calibrate({.progress = [](const std::string& line) { std::puts(line.c_str()); }})
          : price::find_machine(machine_file);
  if (!save.empty()) std::ofstream(save) << price::write_machine(machine);
  std::printf("calls %.2f us %.2f us, %.3g s per byte, error %.3f\n", machine.library_call_s * 1e6,
              machine.own_call_s * 1e6, machine.byte_s, machine.error);
  if (!file.empty()) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    config::Config config = config::parse(text.str());
    config::check(config, ranks);
    print_operators(config::resolved(config, ranks), ranks, machine);
    return 0;
  }
  // Every communicator of the virtual clock has its own link.
  machine.cluster.domains = {{.name = "link", .link = link, .shared = false}};
  std::vector<Case> chosen;
  for (const Case& one : cases())
    if (only.empty() || only == one.name) chosen.push_back(one);
  // Other programs disturb a measurement for seconds, so each case is measured at several times.
  std::vector<StepSeconds> fastest(chosen.size(), {INFINITY, INFINITY});
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < chosen.size(); ++i)
      keep_faster(fastest[i], measure(make_config(chosen[i]), chosen[i].ranks, link, steps));
  }
  double sum = 0, worst = 0;
  std::puts(
      "| configuration | measured ms | predicted ms | error | compute, measured / predicted | waits, measured / "
      "predicted |"
      "\n|---|---|---|---|---|---|");
  for (size_t i = 0; i < chosen.size(); ++i) {
    const Case& one = chosen[i];
    const auto& [measured, compute] = fastest[i];
    const config::Config config = make_config(one);
    const replay::StepTime predicted = forecast::price_step(
        {.config = config, .world_size = one.ranks, .vocab_size = config.model.vocab_size}, machine);
    const double error = predicted.seconds / measured - 1;
    sum += std::abs(error), worst = std::max(worst, std::abs(error));
    const replay::RankTimes& times = predicted.ranks[0];
    std::printf("| %s | %.2f | %.2f | %+.1f %% | %.2f / %.2f | %.2f / %.2f |\n", one.name, measured * 1e3,
                predicted.seconds * 1e3, error * 100, compute * 1e3, times.compute() * 1e3,
                (measured - compute) * 1e3, (times.communication() + times.idle) * 1e3);
    if (breakdown) print_operators(config, one.ranks, machine);
  }
  std::printf("mean %.1f %%, worst %.1f %%\n", sum / static_cast<double>(chosen.size()) * 100, worst * 100);
}

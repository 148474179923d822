// Prints predicted and measured step times of small models on this CPU: ranks are threads on the virtual clock. One
// calibration serves all configurations.
//   step_time [--machine FILE] [--save FILE] [--steps 5] [--only NAME]
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

double measure(const config::Config& config, int ranks, const price::LinkCost& link, int steps) {
  const auto clock = std::make_shared<clock::VirtualClock>(ranks, link);
  std::vector<std::vector<double>> times(static_cast<size_t>(ranks));
  comm::run_threads(
      ranks, topology::RankGrid(ranks, config.parallel), {.observer = clock}, [&](const comm::World& world) {
        auto assembly = step::assemble(config, world, config.model.vocab_size);
        const int64_t dp = world.groups().dp.size(),
                      count = config.train.global_batch_size / (config.train.micro_batch_size * dp);
        const std::vector<nn::Microbatch> batches(static_cast<size_t>(count), bench::make_batch(config, world));
        for (int64_t step = 0; step < steps + 2; ++step) {
          comm::barrier(world.groups().world);
          const double start = clock->now(world.rank());
          step::train_step(*assembly, {batches, step + 1, step, false, {}});
          comm::barrier(world.groups().world);
          if (step >= 2) times[static_cast<size_t>(world.rank())].push_back(clock->now(world.rank()) - start);
        }
      });
  return bench::median(times[0]);
}

void print_operators(const config::Config& config, int ranks, const price::Machine& machine) {
  const forecast::TracedRun run =
      forecast::trace_run({.config = config,
                           .world_size = ranks,
                           .vocab_size = config.model.vocab_size,
                           .device = machine.gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU)});
  std::map<std::string, std::pair<double, int>> sums;
  const auto add = [&](const std::vector<replay::IslandTrace>& regions) {
    for (const replay::IslandTrace& region : regions) {
      for (const replay::TraceOperation& one : region.operations) {
        if (!one.group.empty()) continue;
        auto& [seconds, count] = sums[one.name + " " + one.dtype];
        seconds += price::operator_seconds(machine, {one.name, one.dtype, one.flops, static_cast<double>(one.bytes)});
        ++count;
      }
    }
  };
  for (const replay::TracedAction& action : run.traces[0].actions) add(action.regions);
  add(run.traces[0].after);
  for (const auto& [name, sum] : sums)
    std::printf("    %-50s %5d %10.3f ms%s\n", name.c_str(), sum.second, sum.first * 1e3,
                machine.measured.contains(name) ? "" : "  not measured");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("step_time");
  std::string machine_file, save, only;
  int steps = 5;
  app.add_option("--machine", machine_file);
  app.add_option("--save", save);
  app.add_option("--steps", steps);
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
  price::Machine machine =
      machine_file.empty()
          ? forecast::calibrate({.progress = [](const std::string& line) { std::puts(line.c_str()); }})
          : price::find_machine(machine_file);
  if (!save.empty()) std::ofstream(save) << price::write_machine(machine);
  std::printf("calls %.2f us %.2f us region %.2f us step %.2f us error %.3f\n", machine.library_call_s * 1e6,
              machine.own_call_s * 1e6, machine.region_s * 1e6, machine.step_s * 1e6, machine.error);
  if (!file.empty()) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    config::Config config = config::parse(text.str());
    config::check(config, ranks);
    print_operators(config::resolved(config, ranks), ranks, machine);
    return 0;
  }
  const price::LinkCost link{20e-6, 1e9};
  machine.cluster.domains = {{"link", 0, link}};
  double sum = 0, worst = 0;
  int count = 0;
  for (const Case& one : cases()) {
    if (!only.empty() && only != one.name) continue;
    const config::Config config = make_config(one);
    const double measured = measure(config, one.ranks, link, steps);
    const replay::StepTime predicted = forecast::price_step(
        {.config = config, .world_size = one.ranks, .vocab_size = config.model.vocab_size}, machine);
    const double error = predicted.seconds / measured - 1;
    sum += std::abs(error), worst = std::max(worst, std::abs(error)), ++count;
    const replay::RankTimes& times = predicted.slowest();
    std::printf(
        "%-22s measured %8.2f ms  predicted %8.2f ms  %+6.1f %%   forward %.2f backward %.2f update %.2f comm %.2f "
        "idle %.2f\n",
        one.name, measured * 1e3, predicted.seconds * 1e3, error * 100, times.forward * 1e3, times.backward * 1e3,
        times.optimizer * 1e3, times.communication() * 1e3, times.idle * 1e3);
    if (breakdown) print_operators(config, one.ranks, machine);
    std::fflush(stdout);
  }
  std::printf("mean %.1f %%, worst %.1f %%\n", sum / count * 100, worst * 100);
}

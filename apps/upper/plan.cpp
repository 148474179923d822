// metroplex plan: memory, time and cost of a run, and the best layouts for it.
#include "upper/commands.h"

#include <cmath>
#include <fstream>
#include <iostream>

#include "base/error.h"
#include "config/load.h"
#include "files/file_system.h"
#include "forecast/calibrate.h"
#include "forecast/run_plan.h"
#include "forecast/search.h"
#include "numbers.h"
#include "program.h"
#include "run_config.h"
#include "upper/launch.h"
#include "upper/run_tokenizer.h"

namespace metroplex::apps {
namespace {

constexpr const char* kPlanUsage =
    R"(Usage: metroplex plan CONFIG.yaml --gpus N [--cluster NAME|FILE] [--search] [as for train]

Predicts memory, step time, throughput and GPU hours of a run before it starts. It simulates one step: the operators
that the layers issue, the pipeline table and the collectives, on a description of the machine.

  metroplex plan run.yaml --gpus 64 --cluster h200
  metroplex plan run.yaml --gpus 16384 --cluster h100 --search --output best.yaml

--cluster    a built-in machine, or a file that metroplex calibrate wrote (default h100; cpu with run.device: cpu)
--search     compares layouts, schedules, sharding and recomputation, and prints the ten fastest that fit
--output F   with --search: writes the fastest configuration to F
--imbalance X  rows of the busiest expert rank / mean (default 1)
--failures X   failures per GPU and 1,000 days, and --restart S seconds of an interruption: adds goodput
--trace F    writes the simulated step as a Chrome trace
--json       prints JSON
)";

struct PlanFlags {
  std::string gpus, cluster, output, imbalance, failures, restart, trace;
  bool search = false, json = false;
  std::vector<CommandFlag> own_flags() {
    return {{.name = "--gpus", .value = &gpus},         {.name = "--cluster", .value = &cluster},
            {.name = "--output", .value = &output},     {.name = "--imbalance", .value = &imbalance},
            {.name = "--failures", .value = &failures}, {.name = "--restart", .value = &restart},
            {.name = "--trace", .value = &trace},       {.name = "--search", .given = &search},
            {.name = "--json", .given = &json}};
  }
};

double number_or(const char* name, const std::string& text, double otherwise, double least) {
  if (text.empty()) return otherwise;
  const double value = real_number(name, text);
  MPX_CHECK(std::isfinite(value) && value >= least, "config", name, " = ", text, ": must be at least ", least);
  return value;
}

forecast::MemoryDomains memory_domains(const config::Config& config, const price::Machine& machine) {
  forecast::MemoryDomains domains;
  domains.gpu = machine.gpu;
  domains.from = machine.name;
  if (machine.memory_bytes > 0) domains.bytes = std::llround(machine.memory_bytes);
  if (config.memory.device_memory_gib > 0) domains.bytes = std::llround(config.memory.device_memory_gib * 1073741824);
  return domains;
}

void write_file(const std::string& path, const std::string& text) {
  files::PosixFileSystem disk;
  disk.write_output(path, text);
}

}  // namespace

int run_plan(const std::vector<std::string>& arguments) {
  PlanFlags flags;
  RunArguments parsed = parse_run_arguments(arguments, flags.own_flags());
  if (parsed.help || arguments.empty()) {
    std::cout << kPlanUsage;
    return kExitOk;
  }
  config::Config config = parsed.config;
  if (!flags.gpus.empty()) { config.run.nproc = static_cast<int64_t>(number_or("--gpus", flags.gpus, 1, 1)); }
  const bool on_cpu = config.run.device == config::Device::cpu;
  const std::string cluster = !flags.cluster.empty() ? flags.cluster : on_cpu ? "cpu" : "h100";
  forecast::PlanRequest request{.run = {}, .machine = price::find_machine(cluster)};
  config.run.device = request.machine.gpu ? config::Device::cuda : config::Device::cpu;
  const int64_t world_size = planned_world_size(config.run);
  const run::TokenizerFacts tokenizer = tokenizer_facts(config);
  request.imbalance = number_or("--imbalance", flags.imbalance, 1, 1);
  request.failures_per_hour = number_or("--failures", flags.failures, 0, 0) / 24000;
  request.restart_s = number_or("--restart", flags.restart, 600, 0);
  request.run = {config, static_cast<int>(world_size), tokenizer.vocab_size, memory_domains(config, request.machine)};
  if (flags.search) {
    const forecast::LayoutSearch search = forecast::search_layouts(request);
    std::cout << (flags.json ? forecast::to_json(search) : forecast::to_text(request, search));
    if (!flags.output.empty()) write_file(flags.output, forecast::best_yaml(request, search));
    return kExitOk;
  }
  request.run.config = checked_config(config, world_size);
  const forecast::RunPlan plan = forecast::plan_run(request);
  std::cout << (flags.json ? forecast::to_json(request, plan) + "\n" : forecast::to_text(request, plan));
  if (!flags.trace.empty()) write_file(flags.trace, forecast::to_trace(plan));
  return kExitOk;
}

namespace {

constexpr const char* kCalibrateUsage =
    R"(Usage: metroplex calibrate --output FILE

Measures this CPU in about a minute: small models train on one rank, and every operator is timed. The file describes
the machine for metroplex plan --cluster FILE. Run it while the machine is idle.
)";

}  // namespace

int run_calibrate(const std::vector<std::string>& arguments) {
  std::string output;
  const RunArguments parsed = parse_run_arguments(arguments, {{.name = "--output", .value = &output}});
  if (parsed.help || output.empty()) {
    std::cout << kCalibrateUsage;
    return parsed.help ? kExitOk : kExitConfig;
  }
  forecast::CalibrateOptions options;
  options.progress = [](const std::string& line) { std::cout << line << std::endl; };
  const price::Machine machine = forecast::calibrate(options);
  write_file(output, price::write_machine(machine));
  std::cout << "wrote " << output << ": " << machine.measured.size() << " operators, largest error "
            << std::lround(100 * machine.error) << " %\n";
  return kExitOk;
}

}  // namespace metroplex::apps

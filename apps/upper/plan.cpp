// metroplex plan: memory, time and cost of a run, and the best layouts for it.
#include "upper/commands.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "base/error.h"
#include "config/load.h"
#include "draw/schedule.h"
#include "files/expert_trace.h"
#include "files/file_system.h"
#include "files/same_file.h"
#include "forecast/calibrate.h"
#include "forecast/run_plan.h"
#include "forecast/search.h"
#include "numbers.h"
#include "page/text_curve.h"
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
--search     compares layouts, schedules, sharding, recomputation and offload; varies order, buckets, dispatcher and
             ECHO slots of the best; prints the ten fastest that fit, and a picture of memory and time
--output F   with --search: writes the fastest configuration to F
--imbalance X  rows of the busiest expert rank / mean, without ECHO (default 1)
--expert-trace F  expert loads from train.expert_trace_file, in place of --imbalance
--failures X   failures per GPU and 1,000 days, and --restart S seconds of an interruption: adds goodput
--trace F    writes the simulated step as a Chrome trace, with its memory; --svg F as a picture
--json       prints JSON
)";

struct PlanFlags {
  std::string gpus, cluster, output, imbalance, expert_trace, failures, restart, trace, svg;
  bool search = false, json = false;
  std::vector<CommandFlag> own_flags() {
    return {{.name = "--gpus", .value = &gpus},
            {.name = "--cluster", .value = &cluster},
            {.name = "--output", .value = &output},
            {.name = "--imbalance", .value = &imbalance},
            {.name = "--expert-trace", .value = &expert_trace},
            {.name = "--failures", .value = &failures},
            {.name = "--restart", .value = &restart},
            {.name = "--trace", .value = &trace},
            {.name = "--svg", .value = &svg},
            {.name = "--search", .given = &search},
            {.name = "--json", .given = &json}};
  }
  // Refuses flags without effect.
  void check(bool has_experts) const {
    MPX_CHECK(search || output.empty(), "config", "--output is the result of --search; add --search or remove it");
    MPX_CHECK(!search || (trace.empty() && svg.empty()), "config",
              "--trace and --svg show one layout; use them without --search, for the file of --output");
    MPX_CHECK(restart.empty() || !failures.empty(), "config", "--restart only applies with --failures");
    MPX_CHECK(imbalance.empty() || has_experts, "config", "--imbalance: the model has no experts; remove it");
    MPX_CHECK(expert_trace.empty() || imbalance.empty(), "config",
              "--expert-trace replaces --imbalance; remove one of them");
  }
};

double number_or(const char* name, const std::string& text, double otherwise, double least) {
  if (text.empty()) return otherwise;
  const double value = real_number(name, text);
  MPX_CHECK(std::isfinite(value) && value >= least, "config", name, " = ", text, ": must be at least ", least);
  return value;
}

forecast::MemoryDomains memory_domains(const config::Config& config, int64_t world_size,
                                       const price::Machine& machine) {
  forecast::MemoryDomains domains;
  domains.gpu = machine.gpu;
  if (!machine.gpu) domains.ranks_each = world_size;  // one machine
  domains.from = machine.name;
  if (machine.memory_bytes > 0) domains.bytes = std::llround(machine.memory_bytes);
  if (config.memory.device_memory_gib > 0) domains.bytes = std::llround(config.memory.device_memory_gib * 1073741824);
  return domains;
}

// Step time against memory. The Pareto front covers the other results.
std::string draw_pareto(const forecast::LayoutSearch& search) {
  const auto points = [](std::vector<forecast::SearchResult> results) {
    std::stable_sort(results.begin(), results.end(),
                     [](const auto& left, const auto& right) { return left.plan.fit.need < right.plan.fit.need; });
    page::Series series;
    for (const forecast::SearchResult& result : results) {
      series.iterations.push_back(result.plan.fit.need >> 20);
      series.values.push_back(result.plan.step_s);
    }
    return series;
  };
  const page::Series results = points(search.results), front = points(search.pareto);
  return page::draw_curves("step time in s (up), memory in MiB (right)",
                           {{"results", &results, false}, {"not beaten", &front, false}},
                           {.columns = 80, .lines = 18, .ascii = true});
}

void write_file(const std::string& path, const std::string& text) {
  files::PosixFileSystem disk;
  disk.write_output(path, text);
}

// Throws base::Error if an output cannot be written, or is another output or a file that the command reads.
void check_plan_outputs(const PlanFlags& flags, const std::vector<std::string>& arguments) {
  const std::vector<files::Output> outputs{
      {"--output", flags.output}, {"--trace", flags.trace}, {"--svg", flags.svg}};
  files::PosixFileSystem disk;
  std::vector<std::string> inputs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_output = i > 0 && std::any_of(outputs.begin(), outputs.end(), [&](const files::Output& output) {
                             return arguments[i - 1] == output.option;
                           });
    if (!is_output && disk.file_size(arguments[i])) inputs.push_back(arguments[i]);
  }
  files::check_outputs(disk, outputs, inputs);
}

// Writes a line over the last one, if a person reads it.
void show_progress(const std::string& line) {
  if (isatty(STDERR_FILENO) != 0) std::cerr << "\r\033[K" << line << std::flush;
}

}  // namespace

int run_plan(const std::vector<std::string>& arguments) {
  PlanFlags flags;
  RunArguments parsed = parse_run_arguments(arguments, flags.own_flags());
  if (parsed.help || arguments.empty()) {
    std::cout << kPlanUsage;
    return kExitOk;
  }
  check_plan_outputs(flags, arguments);
  flags.check(parsed.config.model.num_moe_experts > 0);
  config::Config config = parsed.config;
  if (!flags.gpus.empty()) { config.run.nproc = whole_number("--gpus", flags.gpus, 1); }
  const bool on_cpu = config.run.device == config::Device::cpu;
  const std::string cluster = !flags.cluster.empty() ? flags.cluster : on_cpu ? "cpu" : "h100";
  forecast::PlanRequest request{.run = {}, .machine = price::find_machine(cluster)};
  config.run.device = request.machine.gpu ? config::Device::cuda : config::Device::cpu;
  // Each rank has its own GPU, while threads would share one.
  if (request.machine.gpu && config.run.backend == config::Backend::threads)
    config.run.backend = config::Backend::automatic;
  const int64_t world_size = planned_world_size(config.run);
  // A given size needs no tokenizer.
  const int64_t vocab_size =
      config.model.vocab_size > 0 ? config.model.vocab_size : tokenizer_facts(config).vocab_size;
  request.experts.imbalance = number_or("--imbalance", flags.imbalance, 1, 1);
  if (!flags.expert_trace.empty()) {
    files::PosixFileSystem disk;
    request.experts = forecast::recorded_demand(
        files::read_expert_trace(disk, files::find_expert_trace(disk, flags.expert_trace)), config.model);
  }
  request.failures_per_hour = number_or("--failures", flags.failures, 0, 0) / 24000;
  request.restart_s = number_or("--restart", flags.restart, 600, 0);
  request.run = {config, static_cast<int>(world_size), vocab_size,
                 memory_domains(config, world_size, request.machine), request.machine.capability};
  if (!request.machine.gpu) use_threads_of_rank(config.run, world_size);
  if (flags.search) {
    request.progress = show_progress;
    const forecast::LayoutSearch search = forecast::search_layouts(request);
    show_progress("");
    std::cout << (flags.json ? forecast::to_json(search) : forecast::to_text(request, search) + draw_pareto(search));
    if (!flags.output.empty()) write_file(flags.output, forecast::best_yaml(request, search));
    return kExitOk;
  }
  request.run.config = checked_config(config, world_size);
  const forecast::RunPlan plan = forecast::plan_run(request);
  std::cout << (flags.json ? forecast::to_json(request, plan) + "\n" : forecast::to_text(request, plan));
  if (!flags.trace.empty()) write_file(flags.trace, forecast::to_trace(plan));
  if (!flags.svg.empty()) write_file(flags.svg, draw::draw_svg(plan.table, plan.time.timeline));
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
  files::PosixFileSystem disk;
  files::check_outputs(disk, {{"--output", output}}, {});
  forecast::CalibrateOptions options;
  options.progress = [](const std::string& line) { std::cout << line << std::endl; };
  const price::Machine machine = forecast::calibrate(options);
  write_file(output, price::write_machine(machine));
  std::cout << "wrote " << output << ": " << machine.measured.size() << " operators, largest error "
            << std::lround(100 * machine.error) << " %\n";
  return kExitOk;
}

}  // namespace metroplex::apps

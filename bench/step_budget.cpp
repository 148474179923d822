// step_budget [MODEL...] [--copy-gb-per-s 4212] [--matmul-tflops 794] [--set KEY=VALUE...] [--kernels FILE...
// [--start FILE...] --steps N]: work of a step of gpu_step by kernel class, with the code paths of sm_90, as
// Markdown. Traces the real step on the meta device, without a GPU. The bound of a class is the sum over its
// operators: the longer of bytes at the copy rate and FLOPs at the matmul rate. --kernels: CSV of nsys or ncu of a
// run of gpu_step (docs/gpu.md); it adds measured time and loss. --start: the same of a run with N fewer steps, which
// is subtracted. An unknown kernel is a class.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "forecast/step_budget.h"
#include "forecast/trace_step.h"
#include "step_cases.h"

namespace {

using namespace metroplex;
using forecast::Work;

struct Arguments {
  std::vector<std::string> models, settings, kernel_files, start_files;
  forecast::BudgetRates rates;
  int64_t steps = 1;
  bool small = false;
};

// Adds `times` the seconds of the kernels by class.
void add_kernels(std::map<std::string, double>& seconds, const std::vector<std::string>& files, double times) {
  for (const std::string& file : files) {
    std::ifstream in(file);
    MPX_CHECK(in, "bench", "file = ", file, ": must be readable; export it by nsys stats");
    std::stringstream text;
    text << in.rdbuf();
    for (const forecast::KernelTime& kernel : forecast::read_kernel_times(text.str(), file)) {
      const std::string known = forecast::kernel_class(kernel.name);
      seconds[known.empty() ? kernel.name.substr(0, 60) : known] += times * kernel.seconds;
    }
  }
}

// Seconds of a step by kernel class; empty without files.
std::map<std::string, double> measured_seconds(const Arguments& arguments) {
  std::map<std::string, double> seconds;
  const double share = 1 / static_cast<double>(arguments.steps);
  add_kernels(seconds, arguments.kernel_files, share);
  add_kernels(seconds, arguments.start_files, -share);
  return seconds;
}

void print_row(const std::string& name, const Work& work, const double* measured_s) {
  std::printf("| %s | %lld | %.3f | %.3f | %.3f |", name.c_str(), static_cast<long long>(work.launches),
              work.bytes / 1e9, work.flops / 1e12, work.bound_s * 1e3);
  if (measured_s != nullptr) std::printf(" %.3f | %.3f |", *measured_s * 1e3, (*measured_s - work.bound_s) * 1e3);
  std::puts("");
}

void print_classes(const replay::StepTrace& trace, const Arguments& arguments) {
  std::map<std::string, double> measured = measured_seconds(arguments);
  const bool columns = !measured.empty();
  std::printf("| kernels | launches | GB | TFLOP | bound, ms |%s\n|---|---|---|---|---|%s\n",
              columns ? " measured, ms | loss, ms |" : "", columns ? "---|---|" : "");
  std::map<std::string, Work> classes = forecast::sum_classes(trace, arguments.rates);
  for (const auto& [name, seconds] : measured) classes.try_emplace(name);
  std::vector<std::pair<std::string, Work>> rows(classes.begin(), classes.end());
  const auto weight = [&](const auto& row) {
    return columns ? measured[row.first] - row.second.bound_s : row.second.bound_s;
  };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const auto& left, const auto& right) { return weight(left) > weight(right); });
  Work all;
  double all_measured = 0;
  for (const auto& [name, work] : rows) {
    const double seconds = measured[name];
    print_row(name, work, columns ? &seconds : nullptr);
    all.launches += work.launches;
    all.bytes += work.bytes;
    all.flops += work.flops;
    all.bound_s += work.bound_s;
    all_measured += seconds;
  }
  print_row("sum", all, columns ? &all_measured : nullptr);
}

void print_products(const replay::StepTrace& trace, const Arguments& arguments) {
  std::puts("\n| products | GFLOP each | launches | GB | TFLOP | bound, ms |\n|---|---|---|---|---|---|");
  for (const auto& [role, work] : forecast::sum_products(trace, arguments.rates)) {
    char name[128];
    std::snprintf(name, sizeof name, "%s | %.1f", role.name.c_str(), role.flops / 1e9);
    print_row(name, work, nullptr);
  }
}

// Equal blocks in a row share a line.
void print_launches(const replay::StepTrace& trace) {
  std::puts("\n| blocks | launches forward | backward | sum | by operator |\n|---|---|---|---|---|");
  const std::map<int, forecast::BlockLaunches> blocks = forecast::count_launches(trace);
  for (auto first = blocks.begin(), last = first; first != blocks.end(); first = last) {
    const forecast::BlockLaunches& block = first->second;
    int end = first->first;
    for (; last != blocks.end() && last->second.operators == block.operators; ++last) end = last->first;
    std::string operators;
    for (const auto& [name, launches] : block.operators)
      operators += base::concat(operators.empty() ? "" : ", ", launches, " ", name);
    std::printf("| %d to %d | %lld | %lld | %lld | %s |\n", first->first, end, static_cast<long long>(block.forward),
                static_cast<long long>(block.backward), static_cast<long long>(block.forward + block.backward),
                operators.c_str());
  }
}

void run(const Arguments& arguments) {
  for (const std::string& model : arguments.models) {
    const replay::StepTrace trace =
        forecast::trace_step(bench::gpu_request({model, "cuda", "none", arguments.small, arguments.settings}));
    std::printf("\n### %s\n\n", model.c_str());
    print_classes(trace, arguments);
    print_products(trace, arguments);
    print_launches(trace);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("step_budget");
  Arguments arguments;
  double copy_gb_per_s = arguments.rates.copy_bytes_per_s / 1e9, matmul_tflops = arguments.rates.matmul_flops / 1e12;
  app.add_option("models", arguments.models, "default: all of gpu_step");
  app.add_option("--copy-gb-per-s", copy_gb_per_s)->check(CLI::PositiveNumber);
  app.add_option("--matmul-tflops", matmul_tflops)->check(CLI::PositiveNumber);
  app.add_option("--set", arguments.settings, "keys of the configuration, as precision.main_grads_dtype=params");
  app.add_option("--kernels", arguments.kernel_files, "CSV of nsys or ncu; requires one model");
  app.add_option("--start", arguments.start_files, "CSV of a run with fewer steps")->needs("--kernels");
  app.add_option("--steps", arguments.steps, "steps of --kernels less those of --start")
      ->check(CLI::PositiveNumber)
      ->needs("--kernels");
  app.add_flag("--small", arguments.small);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) { return app.exit(error) == 0 ? 0 : 2; }
  arguments.rates = {copy_gb_per_s * 1e9, matmul_tflops * 1e12};
  if (arguments.models.empty())
    for (const bench::GpuModel& model : bench::kGpuModels) arguments.models.emplace_back(model.name);
  try {
    MPX_CHECK(arguments.kernel_files.empty() || arguments.models.size() == 1, "bench",
              "--kernels: requires the measured model; give one");
    run(arguments);
  } catch (const base::Error& error) {
    std::fprintf(stderr, "step_budget: %s\n", error.what());
    return 2;
  }
  return 0;
}

#include "run/beginning.h"

#include "base/error.h"
#include "config/experts.h"
#include "device/device.h"
#include "files/expert_trace.h"
#include "forecast/graph_report.h"
#include "moe/grouped_library.h"
#include "run/run_folders.h"
#include "run/run_lines.h"
#include "run/step_trace.h"

namespace metroplex::run {
namespace {

// Log line about the experts: dispatcher and grouped GEMM, which the configuration may leave open, and the ECHO
// planner.
std::string format_experts(const step::ProcessContext& process) {
  const config::Model& model = process.config.model;
  const int64_t ep = process.config.parallel.ep(), ranks = process.config.parallel.etp() * ep;
  const std::string replicas = !model.moe_enable_echo
                                   ? std::string()
                                   : "; replica slots: " + std::to_string(config::echo_slots(model, ep)) +
                                         " per rank, planned by " + model.moe_echo_planner.text();
  const bool gpu = process.world->target().gpu();
  const int capability = gpu ? device::compute_capability() : 0;
  const int64_t width = config::expert_ffn_width(model) / process.config.parallel.etp(),
                row_width = config::expert_row_width(model);
  const auto by = [&](int64_t in, int64_t out) {
    moe::GroupedCase of{gpu, capability, process.dtype, in, out, model.moe_enable_echo};
    const std::string few = moe::product_name(of);
    of.rows_of_group = moe::kRowsForJoin;
    const std::string many = moe::product_name(of);
    return few == many ? few : base::concat(many, " from ", moe::kRowsForJoin, " rows per expert, else ", few);
  };
  const std::string fc1 = by(row_width, model.gated_linear_unit ? 2 * width : width), fc2 = by(width, row_width),
                    product = fc1 == fc2 ? fc1 : fc1 + " and " + fc2;
  return " experts: " + std::to_string(model.moe_router_topk) + " of " + std::to_string(model.num_moe_experts) +
         " per token, on " + std::to_string(ranks) + " ranks; sent by " +
         config::text_of(config::token_dispatcher(model, ranks)) + ", multiplied by " +
         (model.moe_grouped_gemm ? product : "one product per expert") + replicas;
}

void begin_from_weights(RunContext& run) {
  const std::string& directory = run.config().model.from;
  if (directory.empty()) return;
  const std::string skipped_tensors =
      run.timers.measure("load-checkpoint", 0, [&] { return load_from_directory(*run.assembly, run.disk()); });
  const std::string& adapters = run.config().peft.from;
  run.say(" started from the weights of " + directory + (adapters.empty() ? "" : " and the adapters of " + adapters));
  if (!skipped_tensors.empty()) run.say(" " + skipped_tensors);
}

}  // namespace

void log_start(const RunContext& run, int64_t eod) {
  const step::Assembly& assembly = *run.assembly;
  run.say(" run " + run.config().run.name);
  if (run.first_rank()) {
    for (const std::string& line : run_lines(assembly.process, run.length, run.disk())) run.say(line);
  }
  if (run.config().model.has_experts()) run.say(format_experts(assembly.process));
  for (const std::string& line : forecast::scope_lines(assembly.model, assembly.graphs)) run.say(line);
  if (!run.first_rank()) return;
  for (const std::string& warning : start_warnings(run.config(), eod, run.disk())) run.warn(warning);
}

PastFiles load_start(RunContext& run, RunSaves* saves) {
  const std::string& directory = run.config().checkpoint.load;
  if (directory.empty()) {
    begin_from_weights(run);
    return {};
  }
  const LoadOutcome outcome = run.timers.measure(
      "load-checkpoint", 0, [&] { return load_state(*run.assembly, directory, run.disk(), run.position); });
  if (!outcome.notes.empty()) run.warn(outcome.notes);
  if (!outcome.loaded) {
    const std::string line = "no checkpoint in " + directory + ": starting from scratch";
    same_folder(directory, run.config().checkpoint.save, run.disk()) ? run.say(" " + line) : run.warn(line);
    begin_from_weights(run);
    return {};
  }
  PastFiles past;
  if (!run.config().checkpoint.finetune) {
    run.position = outcome.position;
    past = {outcome.metrics_file, outcome.expert_trace_file};
  }
  run.position.checkpoint = outcome.path;
  if (saves != nullptr && resumes_in_place(run.config().checkpoint, run.disk()) && !run.config().checkpoint.finetune)
    saves->mark_loaded();
  if (!outcome.skipped_tensors.empty()) run.say(" " + outcome.skipped_tensors);
  if (!outcome.later_branch.empty()) run.say(" " + outcome.later_branch);
  run.say(" loaded checkpoint " + outcome.path +
          (run.config().checkpoint.finetune ? " (weights only)"
                                            : " at iteration " + std::to_string(run.position.iteration)));
  return past;
}

void open_outputs(RunContext& run, const PastFiles& past) {
  const config::Train& train = run.config().train;
  const auto move_foreign_file = [&run](const char* key, const std::string& path, const std::string& own) {
    const std::string aside = path == own ? "" : move_aside(path, run.disk());
    if (!aside.empty()) run.say(base::concat(" ", key, " = ", path, " belongs to another run; moved to ", aside));
  };
  if (run.first_rank()) {
    if (!train.expert_trace_file.empty()) files::check_place_of_trace(run.disk(), train.expert_trace_file);
    check_metrics_file(run.disk(), train.metrics_file);
    check_trace_file(run.disk(), train.trace_file);
    move_foreign_file("train.metrics_file", train.metrics_file, past.metrics);
    move_foreign_file("train.expert_trace_file", train.expert_trace_file, past.expert_trace);
    run.metrics.emplace(train, run.disk(), *run.environment.log);
  }
}

}  // namespace metroplex::run

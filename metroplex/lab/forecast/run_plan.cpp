#include "forecast/run_plan.h"

#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "base/bytes_text.h"
#include "base/error.h"
#include "base/trace_events.h"
#include "config/derived.h"
#include "config/validate.h"
#include "forecast/host_traffic.h"
#include "forecast/stage_traces.h"
#include "plan/model_flops.h"
#include "step/run_length.h"

namespace metroplex::forecast {
namespace {

std::string dtype(const config::Config& config) { return std::string(config.precision.params_dtype.text()); }

double step_model_flops(const FitRequest& run, int64_t samples) {
  const config::Config& config = run.config;
  const int64_t padded =
      config::padded_vocab_size(run.vocab_size, config.model.make_vocab_size_divisible_by, config.parallel.tp());
  return plan::step_flops(plan::model_shape(config, padded), {.batch_size = samples});
}

// Each failure costs the restart and half of the steps between two saves.
double goodput(const PlanRequest& request, double step_s) {
  if (request.failures_per_hour <= 0) return 1;
  const double per_s = request.failures_per_hour * request.run.world_size / 3600;
  const auto interval = static_cast<double>(request.run.config.checkpoint.save_interval);
  const double lost = request.restart_s + interval * step_s / 2;
  return 1 / (1 + per_s * lost);
}

// The plan of a run that needs `memory`.
RunPlan plan_time(const PlanRequest& request, Fit memory, bool events) {
  const config::Config& config = request.run.config;
  RunPlan plan;
  plan.fit = std::move(memory);
  const RankRequest rank = request.run.of_rank(0, max_microbatches(config, request.run.world_size));
  TracedRun traced = trace_run(rank);
  plan.time = price_step(traced, config, request.machine, request.experts, events);
  plan.table = std::move(traced.table);
  add_host_traffic(rank, request.machine, plan.fit, plan.time);
  plan.step_s = plan.time.seconds;
  plan.error = request.machine.error;
  const plan::MicrobatchSchedule schedule =
      step::microbatch_schedule(config, config::data_parallel_size(config.parallel, request.run.world_size));
  const step::RunLength length = step::run_length(config, schedule);
  plan.step_tokens = static_cast<double>(length.full_batch_size * config.train.seq_length);
  plan.model_flops = step_model_flops(request.run, length.full_batch_size);
  const auto peak = request.machine.peak_flops.find(dtype(config));
  if (peak != request.machine.peak_flops.end() && plan.step_s > 0)
    plan.mfu = plan.model_flops / (peak->second * request.run.world_size * plan.step_s);
  plan.run_s = plan.step_s * static_cast<double>(length.samples) / static_cast<double>(length.full_batch_size);
  plan.goodput = goodput(request, plan.step_s);
  return plan;
}

}  // namespace

RunPlan plan_run(const PlanRequest& request) {
  return plan_time(request, fit(request.run, make_stage_predictor()), true);
}

std::optional<RunPlan> plan_fitting_run(const PlanRequest& request, int64_t* need) {
  int64_t unused = 0;
  int64_t& checked = need != nullptr ? *need : unused;
  const Predictor predict = make_stage_predictor();
  const MemoryDomains& domains = request.run.domains;
  // The first stage usually needs the most memory. Ranks of a GPU do not share it.
  if (domains.bytes && domains.gpu && domains.ranks_each == 1) {
    checked = predict_figures(request.run, 0, predict).peak;
    if (checked > *domains.bytes) return std::nullopt;
  }
  Fit memory = fit(request.run, predict);
  checked = memory.need;
  if (!memory.fits()) return std::nullopt;
  return plan_time(request, std::move(memory), false);
}

namespace {

std::string number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return number("%.1f us", seconds * 1e6);
  return seconds < 1 ? number("%.1f ms", seconds * 1e3) : number("%.2f s", seconds);
}

std::string part_line(const char* name, double seconds, double step_s) {
  return base::concat("  ", name, std::string(std::max<size_t>(1, 26 - std::string(name).size()), ' '),
                      seconds_text(seconds), number("  %4.1f %%\n", 100 * seconds / step_s));
}

}  // namespace

std::string to_text(const PlanRequest& request, const RunPlan& plan) {
  const replay::RankTimes& slowest = plan.time.slowest();
  const double gpus = request.run.world_size;
  std::string out = base::concat("plan of metroplex: nothing was started or written\n  machine     ",
                                 request.machine.name, ", ", request.run.world_size, " ranks\n");
  out +=
      base::concat("  memory      ", base::bytes_text(static_cast<double>(plan.fit.need)), " in the fullest domain");
  if (plan.fit.have)
    out += base::concat(" of ", base::bytes_text(static_cast<double>(*plan.fit.have)),
                        plan.fit.fits() ? "" : ": does not fit");
  out += base::concat("\n  step        ", seconds_text(plan.step_s), number(" +- %.0f %%\n", 100 * plan.error));
  out += base::concat("  throughput  ", number("%.4g tokens/s, ", plan.tokens_per_s()),
                      number("%.4g per rank", plan.tokens_per_s() / gpus),
                      number(", %.1f TFLOP/s per rank", plan.model_flops / plan.step_s / gpus * 1e-12),
                      plan.mfu > 0 ? number(", MFU %.1f %%\n", 100 * plan.mfu) : "\n");
  if (plan.run_s > 0)
    out += base::concat("  run         ", number("%.4g hours, ", plan.run_s / plan.goodput / 3600),
                        number("%.4g GPU hours", plan.run_s / plan.goodput / 3600 * gpus),
                        plan.goodput < 1 ? number(", goodput %.1f %%\n", 100 * plan.goodput) : "\n");
  out += "step of the slowest rank\n";
  out += part_line("forward", slowest.forward, plan.step_s);
  out += part_line("backward", slowest.backward + slowest.weight, plan.step_s);
  out += part_line("gradients and update", slowest.optimizer, plan.step_s);
  for (const auto& [purpose, seconds] : slowest.exposed)
    out += part_line(("exposed: " + purpose).c_str(), seconds, plan.step_s);
  out += part_line("waits for other stages", slowest.idle, plan.step_s);
  return out;
}

std::string to_json(const PlanRequest& request, const RunPlan& plan) {
  nlohmann::ordered_json out;
  out["machine"] = request.machine.name;
  out["ranks"] = request.run.world_size;
  out["memory"] = {{"need", plan.fit.need}, {"fits", plan.fit.fits()}};
  if (plan.fit.have) out["memory"]["have"] = *plan.fit.have;
  out["step_s"] = plan.step_s;
  out["error"] = plan.error;
  out["tokens_per_s"] = plan.tokens_per_s();
  out["model_flops"] = plan.model_flops;
  out["mfu"] = plan.mfu;
  out["run_s"] = plan.run_s;
  out["goodput"] = plan.goodput;
  for (const replay::RankTimes& rank : plan.time.ranks) {
    nlohmann::ordered_json times{{"forward", rank.forward},
                                 {"backward", rank.backward},
                                 {"weight", rank.weight},
                                 {"optimizer", rank.optimizer},
                                 {"idle", rank.idle}};
    for (const auto& [purpose, seconds] : rank.exposed) times["exposed"][purpose] = seconds;
    out["stages"].push_back(times);
  }
  return out.dump(2);
}

namespace {

constexpr int kActionsThread = 0;

std::string action_name(const plan::Action& action) {
  return base::concat(plan::action_name(action.kind), " ", action.microbatch,
                      action.chunk > 0 ? base::concat(" chunk ", action.chunk) : "");
}

// Memory at the start of each action, and its maximum within the action.
void add_memory(base::TraceEvents& events, const RankFigures& rank, const RunPlan& plan) {
  const auto pp = static_cast<size_t>(rank.pp);
  const std::vector<replay::TimedAction>& turns = plan.time.timeline.ranks.at(pp);
  const replay::MemoryPrediction& memory = rank.prediction.memory;
  int64_t highest = 0;
  std::map<size_t, std::pair<int64_t, int64_t>> by_action;  // bytes held before it, and most within it
  for (const replay::ReplayMoment& moment : memory.moments) {
    int64_t& most = by_action.try_emplace(moment.action, moment.held, moment.held).first->second.second;
    most = std::max(most, moment.held + moment.most);
    highest = std::max(highest, most);
  }
  const int64_t persistent = memory.peak - highest;
  const auto add = [&](double at_s, int64_t bytes) {
    events.counter(rank.pp, "memory", at_s, {{"MiB", static_cast<double>(persistent + bytes) / 1048576}});
  };
  for (const auto& [number, bytes] : by_action) {
    const auto is_turn = [&action = plan.table.ranks[pp].at(number)](const replay::TimedAction& turn) {
      return turn.action == action;
    };
    const double start = std::find_if(turns.begin(), turns.end(), is_turn)->start,
                 end = std::find_if(turns.rbegin(), turns.rend(), is_turn)->end;
    add(start, bytes.first);
    add((start + end) / 2, bytes.second);
  }
}

}  // namespace

std::string to_trace(const RunPlan& plan) {
  base::TraceEvents events;
  std::map<std::string, int> tracks{{"step", kActionsThread}};
  for (const replay::SimulatedEvent& event : plan.time.events)
    tracks.try_emplace(event.track, static_cast<int>(tracks.size()));
  for (size_t rank = 0; rank < plan.time.ranks.size(); ++rank) {
    events.name_process(static_cast<int>(rank), base::concat("pipeline rank ", rank));
    for (const auto& [track, thread] : tracks) events.name_thread(static_cast<int>(rank), thread, track);
    for (const replay::TimedAction& timed : plan.time.timeline.ranks[rank]) {
      if (!plan::is_compute(timed.action.kind)) continue;
      events.span(static_cast<int>(rank), kActionsThread, action_name(timed.action), "step", timed.start,
                  timed.end - timed.start);
    }
  }
  for (const replay::SimulatedEvent& event : plan.time.events)
    events.span(event.rank, tracks.at(event.track), event.name, event.track, event.start, event.end - event.start);
  int pp = -1;
  for (const RankFigures& rank : plan.fit.ranks) {  // in order of pp: the first rank of each
    if (rank.pp != pp) add_memory(events, rank, plan);
    pp = rank.pp;
  }
  return events.json();
}

}  // namespace metroplex::forecast

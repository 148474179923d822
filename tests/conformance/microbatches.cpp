// microbatches.json: constant, step and ramp-up schedules, and the rejections of each.
#include "base/error.h"
#include "conformance/report.h"
#include "plan/microbatches.h"

namespace metroplex::conformance {
namespace {

using plan::MicrobatchCount;
using plan::MicrobatchSchedule;
using plan::MicrobatchSizes;

MicrobatchSizes read_sizes(const Json& json) {
  return {json.at("micro_batch_size").get<int64_t>(), json.at("data_parallel_size").get<int64_t>(),
          json.value("decrease_batch_size_if_needed", false)};
}

std::string compare_count(const MicrobatchCount& got, const Json& expected, const char* global, const char* running) {
  return compare(Json{got.global_batch_size, got.num_microbatches, got.running_global_batch_size},
                 Json{expected.at(global), expected.at("num_micro_batches"), expected.at(running)});
}

// Runs `body`; a case with an error must throw base::Error, any other case must not.
template <class Body>
std::string with_refusal(const Json& json, Body body) {
  try {
    const std::string problem = body();
    return json.contains("error") ? "accepted, expected " + json.at("error").dump() : problem;
  } catch (const base::Error& error) { return json.contains("error") ? "" : std::string("refused: ") + error.what(); }
}

std::string check_updates(const MicrobatchSchedule& schedule, const Json& json) {
  if (json.contains("initial")) {
    const auto problem = compare_count(schedule.at(0, false), json.at("initial"), "global_batch_size", "running");
    if (!problem.empty()) return "initially: " + problem;
  }
  for (const Json& update : cases(json, "updates")) {
    const auto problem = with_refusal(update, [&] {
      const auto count =
          schedule.at(update.at("consumed_samples").get<int64_t>(), update.at("consistency_check").get<bool>());
      return update.contains("error") ? "" : compare_count(count, update, "global_batch_size", "running");
    });
    if (!problem.empty()) return "after " + update.at("consumed_samples").dump() + " samples: " + problem;
  }
  return "";
}

// [[consumed, global batch size, microbatches, running], ...], ended by "error: ..." if the next step is rejected.
std::string check_free_run(const MicrobatchSchedule& schedule, const Json& run) {
  int64_t consumed = 0;
  for (const Json& step : run) {
    if (step.is_string()) {
      try {
        schedule.at(consumed);
        return "step at " + std::to_string(consumed) + " samples was accepted, expected " + step.dump();
      } catch (const base::Error&) { return ""; }
    }
    const auto count = schedule.at(consumed);
    const auto problem = compare(
        Json{consumed, count.global_batch_size, count.num_microbatches, count.running_global_batch_size}, step);
    if (!problem.empty()) return "free run: " + problem;
    consumed += count.running_global_batch_size;
  }
  return "";
}

std::string check_constant(const Json& json) {
  return with_refusal(json, [&] {
    const auto schedule = MicrobatchSchedule::constant(json.at("global_batch_size").get<int64_t>(), read_sizes(json));
    return json.contains("error") ? "" : compare_count(schedule.at(0), json, "current_global", "running_global");
  });
}

std::string check_steps(const Json& json) {
  return with_refusal(json, [&]() -> std::string {
    const Json& length = json.at("seq_length");
    const auto schedule = MicrobatchSchedule::steps(json.at("schedule").get<std::string>(),
                                                    length.is_null() ? 0 : length.get<int64_t>(), read_sizes(json));
    if (json.contains("error")) return "";
    const auto problem = compare(schedule.thresholds(), json.at("parsed"));
    return problem.empty() ? check_updates(schedule, json) : "parsed: " + problem;
  });
}

std::string check_rampup(const Json& json) {
  return with_refusal(json, [&]() -> std::string {
    const plan::Rampup rampup{json.at("start").get<int64_t>(), json.at("increment").get<int64_t>(),
                              json.at("ramup_samples").get<int64_t>(), json.at("global_batch_size").get<int64_t>()};
    const auto schedule = MicrobatchSchedule::rampup(rampup, read_sizes(json));
    if (json.contains("error")) return "";
    const auto problem = check_updates(schedule, json);
    return problem.empty() ? check_free_run(schedule, cases(json, "free_run_[consumed,gbs,nmb,running]")) : problem;
  });
}

}  // namespace

void run_microbatches(const Json& file, Report& report) {
  const auto all = [&](const char* list, std::string (*check)(const Json&)) {
    int number = 0;
    for (const Json& json : cases(file, list)) {
      report.check(std::string(list) + " " + std::to_string(number++), [&] { return check(json); });
    }
  };
  all("constant", check_constant);
  all("step", check_steps);
  all("rampup_legacy", check_rampup);
}

}  // namespace metroplex::conformance

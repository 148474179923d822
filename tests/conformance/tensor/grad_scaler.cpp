// grad_scaler.json: the dynamic loss scale, its reciprocal and both counters after every step, bit for bit, and the
// arguments that are refused.
#include "base/error.h"
#include "conformance/report.h"
#include "optim/grad_scaler.h"

namespace metroplex::conformance {

namespace {

optim::GradScalerArgs args_of(const Json& args) {
  optim::GradScalerArgs out;
  out.initial_scale = args.at("initial_scale");
  out.min_scale = args.at("min_scale");
  out.growth_factor = args.at("growth_factor");
  out.backoff_factor = args.at("backoff_factor");
  out.growth_interval = args.at("growth_interval");
  out.hysteresis = args.at("hysteresis");
  return out;
}

std::string history(const Json& test) {
  optim::GradScaler scaler(args_of(test.at("args")));
  Json got = Json::array();
  for (const Json& found_inf : test.at("found_inf")) {
    scaler.update(found_inf.get<int>() != 0);
    const optim::GradScalerState state = scaler.state();
    got.push_back({state.scale, scaler.inv_scale(), state.growth_tracker, state.hysteresis_tracker});
  }
  return compare_list(got, test, "trace_[scale,inv_scale,growth_tracker,hysteresis_tracker]");
}

std::string refusal(const Json& test) {
  try {
    const optim::GradScaler scaler(args_of(test.at("args")));
  } catch (const base::Error&) { return ""; }
  return "accepted, expected " + test.at("error").dump();
}

}  // namespace

void run_grad_scaler(const Json& file, Report& report) {
  for (const Json& test : cases(file, "cases"))
    report.check("history of " + test.at("args").dump(), test, [&] { return history(test); });
  for (const Json& test : cases(file, "errors"))
    report.check("refusal of " + test.at("args").dump(), [&] { return refusal(test); });
}

}  // namespace metroplex::conformance

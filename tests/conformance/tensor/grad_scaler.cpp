// grad_scaler.json: the dynamic loss scale, its reciprocal and both counters after the kernel's decision of every
// step, bit for bit, and the rejected arguments.
#include "base/error.h"
#include "conformance/report.h"
#include "optim/grad_scaler.h"
#include "support/scale_history.h"

namespace metroplex::conformance {

namespace {

optim::GradScalerArgs read_args(const Json& args) {
  optim::GradScalerArgs out;
  out.initial_scale = args.at("initial_scale");
  out.min_scale = args.at("min_scale");
  out.growth_factor = args.at("growth_factor");
  out.backoff_factor = args.at("backoff_factor");
  out.growth_interval = args.at("growth_interval");
  out.hysteresis = args.at("hysteresis");
  return out;
}

std::string history(const Json& recorded) {
  const optim::GradScaler scaler(read_args(recorded.at("args")));
  test::ScaleHistory history{scaler.rule(), {}, {}};
  optim::set_scaler_state(history.values, scaler.start());
  Json got = Json::array();
  for (const Json& found_inf : recorded.at("found_inf")) {
    history.step(found_inf.get<int>() != 0);
    const optim::GradScalerState state = optim::scaler_state(history.values);
    got.push_back({state.scale, kernels::inverse_of(state.scale), state.growth_tracker, state.hysteresis_tracker});
  }
  return compare_list(got, recorded, "trace_[scale,inv_scale,growth_tracker,hysteresis_tracker]");
}

std::string refusal(const Json& test) {
  try {
    const optim::GradScaler scaler(read_args(test.at("args")));
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

#include "optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace metroplex::optim {

static void check_args(const GradScalerArgs& args) {
  const double largest = std::numeric_limits<float>::max();
  MPX_CHECK(args.initial_scale > 0 && args.initial_scale <= largest, "optim", "a loss scale of ", args.initial_scale,
            " (precision.loss_scale, precision.initial_loss_scale) must be above 0 and finite in fp32; 4294967296 is "
            "the default");
  if (args.constant) return;
  MPX_CHECK(args.min_scale > 0 && args.min_scale <= args.initial_scale, "optim",
            "precision.min_loss_scale = ", args.min_scale,
            ": must be above 0 and at most precision.initial_loss_scale ", args.initial_scale, "; lower it");
  MPX_CHECK(args.growth_factor > 1 && args.growth_factor <= largest, "optim", "a growth factor of ",
            args.growth_factor, " must be above 1; use 2");
  MPX_CHECK(args.backoff_factor > 0 && args.backoff_factor < 1, "optim", "a back-off factor of ", args.backoff_factor,
            " must be between 0 and 1; use 0.5");
  MPX_CHECK(args.growth_interval > 0, "optim", "precision.loss_scale_window = ", args.growth_interval,
            ": must be at least 1; use 1000");
  MPX_CHECK(args.hysteresis > 0, "optim", "precision.hysteresis = ", args.hysteresis, ": must be at least 1; use 2");
}

GradScaler::GradScaler(const GradScalerArgs& args) : args_(args) { check_args(args); }

kernels::ScaleRule GradScaler::rule() const {
  return {true,
          !args_.constant,
          static_cast<float>(args_.min_scale),
          static_cast<float>(args_.growth_factor),
          static_cast<float>(args_.backoff_factor),
          args_.growth_interval,
          args_.hysteresis};
}

GradScalerState GradScaler::start() const { return {static_cast<float>(args_.initial_scale), 0, args_.hysteresis}; }

GradScalerState GradScaler::resumed(const GradScalerState& state) const {
  if (args_.constant) return start();
  const auto scale = static_cast<float>(state.scale);
  MPX_CHECK(scale > 0 && std::isfinite(scale) && state.growth_tracker >= 0, "optim", "a saved loss scale of ",
            state.scale, " after ", state.growth_tracker,
            " steps without overflow is damaged; load with checkpoint.no_load_optim");
  return {scale, state.growth_tracker, std::min(state.hysteresis_tracker, args_.hysteresis)};
}

GradScalerState scaler_state(const kernels::StepValues& values) {
  return {values.loss_scale, static_cast<int64_t>(values.growth_tracker),
          static_cast<int64_t>(values.hysteresis_tracker)};
}

void set_scaler_state(kernels::StepValues& values, const GradScalerState& state) {
  values.loss_scale = state.scale;
  values.growth_tracker = static_cast<double>(state.growth_tracker);
  values.hysteresis_tracker = static_cast<double>(state.hysteresis_tracker);
}

std::optional<GradScaler> make_grad_scaler(const config::Precision& precision) {
  if (!precision.scales_loss()) return std::nullopt;
  GradScalerArgs args;
  args.constant = !precision.scales_dynamically();
  args.initial_scale = args.constant ? precision.loss_scale : precision.initial_loss_scale;
  args.min_scale = precision.min_loss_scale;
  args.growth_interval = precision.loss_scale_window;
  args.hysteresis = precision.hysteresis;
  return GradScaler(args);
}

}  // namespace metroplex::optim

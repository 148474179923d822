#include "optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace metroplex::optim {

static void check_args(const GradScalerArgs& a) {
  const double largest = std::numeric_limits<float>::max();
  MPX_CHECK(a.initial_scale > 0 && a.initial_scale <= largest, "optim", "a loss scale of ", a.initial_scale,
            " (precision.loss_scale, precision.initial_loss_scale) must be above 0 and finite in fp32; 4294967296 is "
            "the default");
  if (a.constant) return;
  MPX_CHECK(a.min_scale > 0 && a.min_scale <= a.initial_scale, "optim", "precision.min_loss_scale ", a.min_scale,
            " must be above 0 and at most precision.initial_loss_scale ", a.initial_scale, "; lower it");
  MPX_CHECK(a.growth_factor > 1 && a.growth_factor <= largest, "optim", "a growth factor of ", a.growth_factor,
            " must be above 1; use 2");
  MPX_CHECK(a.backoff_factor > 0 && a.backoff_factor < 1, "optim", "a back-off factor of ", a.backoff_factor,
            " must be between 0 and 1; use 0.5");
  MPX_CHECK(a.growth_interval > 0, "optim", "precision.loss_scale_window ", a.growth_interval,
            " must be at least 1; use 1000");
  MPX_CHECK(a.hysteresis > 0, "optim", "precision.hysteresis ", a.hysteresis, " must be at least 1; use 2");
}

GradScaler::GradScaler(const GradScalerArgs& args) : args_(args) {
  check_args(args);
  scale_ = static_cast<float>(args.initial_scale);
  hysteresis_tracker_ = args.hysteresis;
}

void GradScaler::update(bool found_inf) {
  if (args_.constant) return;
  if (found_inf) {
    growth_tracker_ = 0;
    --hysteresis_tracker_;
    if (hysteresis_tracker_ <= 0) {
      const float cut = scale_ * static_cast<float>(args_.backoff_factor);
      scale_ = std::max(cut, static_cast<float>(args_.min_scale));
    }
    return;
  }
  if (++growth_tracker_ < args_.growth_interval) return;
  growth_tracker_ = 0;
  hysteresis_tracker_ = args_.hysteresis;
  const float grown = scale_ * static_cast<float>(args_.growth_factor);
  if (std::isfinite(grown)) scale_ = grown;
}

void GradScaler::load_state(const GradScalerState& state) {
  if (args_.constant) return;
  const auto scale = static_cast<float>(state.scale);
  MPX_CHECK(scale > 0 && std::isfinite(scale) && state.growth_tracker >= 0, "optim", "a saved loss scale of ",
            state.scale, " after ", state.growth_tracker,
            " steps without overflow is damaged; load with checkpoint.no_load_optim");
  scale_ = scale;
  growth_tracker_ = state.growth_tracker;
  hysteresis_tracker_ = std::min(state.hysteresis_tracker, args_.hysteresis);
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

// The loss scale multiplies the loss to keep fp16 gradients from underflow and overflow. A dynamic scale grows after
// a number of steps without overflow, and shrinks after `hysteresis` overflows; growth resets the hysteresis. A
// constant scale never changes. This file has the update rule and the initial value. The scale itself is in the step
// state on the device (kernels/step_state.h).
#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"
#include "kernels/step_state.h"

namespace metroplex::optim {

struct GradScalerArgs {
  double initial_scale = 4294967296.0;
  double min_scale = 1.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 1000;  // steps without overflow before the scale grows
  int64_t hysteresis = 2;          // overflows before it shrinks
  bool constant = false;           // always initial_scale; the other arguments are ignored
};

// State stored in a checkpoint.
struct GradScalerState {
  double scale = 1.0;
  int64_t growth_tracker = 0;
  int64_t hysteresis_tracker = 0;
  bool operator==(const GradScalerState&) const = default;
};

class GradScaler {
 public:
  // Throws base::Error("optim") for invalid arguments.
  explicit GradScaler(const GradScalerArgs& args);

  bool constant() const { return args_.constant; }
  kernels::ScaleRule rule() const;
  GradScalerState start() const;
  // Returns the state of a run that resumes from `state`; a constant scale stays as configured. Throws
  // base::Error("optim") for an invalid state.
  GradScalerState resumed(const GradScalerState& state) const;

 private:
  GradScalerArgs args_;
};

GradScalerState scaler_state(const kernels::StepValues& values);
void set_scaler_state(kernels::StepValues& values, const GradScalerState& state);

// Constant with precision.loss_scale, dynamic in an fp16 run without it, else nullopt.
std::optional<GradScaler> make_grad_scaler(const config::Precision& precision);

}  // namespace metroplex::optim

// The factor a loss is multiplied with before backward so that fp16 gradients neither underflow nor overflow.
// Dynamic: it grows after a run of steps without overflow and is cut back by overflows, with some patience
// (hysteresis) that only growth restores. Constant: it never moves. Here is its rule and where it starts; the scale
// itself lies among a step's values and moves there (cuda/kernels/step_state.h).
#pragma once

#include <cstdint>
#include <optional>

#include "config/precision.h"
#include "cuda/kernels/step_state.h"

namespace metroplex::optim {

struct GradScalerArgs {
  double initial_scale = 4294967296.0;
  double min_scale = 1.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 1000;  // steps without overflow before the scale grows
  int64_t hysteresis = 2;          // overflows before it is cut back
  bool constant = false;           // initial_scale for ever; of the others nothing is read
};

// What a checkpoint keeps.
struct GradScalerState {
  double scale = 1.0;
  int64_t growth_tracker = 0;
  int64_t hysteresis_tracker = 0;
  bool operator==(const GradScalerState&) const = default;
};

class GradScaler {
 public:
  // Throws base::Error("optim") for numbers that cannot scale anything.
  explicit GradScaler(const GradScalerArgs& args);

  bool constant() const { return args_.constant; }
  cuda::kernels::ScaleRule rule() const;
  GradScalerState start() const;
  // Where a run goes on that saved `state`; a constant scale stays the one that was configured. Throws
  // base::Error("optim") for a state that cannot be.
  GradScalerState resumed(const GradScalerState& state) const;

 private:
  GradScalerArgs args_;
};

GradScalerState scaler_state(const cuda::kernels::StepValues& values);
void set_scaler_state(cuda::kernels::StepValues& values, const GradScalerState& state);

// Constant with precision.loss_scale, dynamic in an fp16 run without it, else none.
std::optional<GradScaler> make_grad_scaler(const config::Precision& precision);

}  // namespace metroplex::optim

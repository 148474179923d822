// The factor a loss is multiplied with before backward so that fp16 gradients neither underflow nor overflow.
// Dynamic: it grows after a run of steps without overflow and is cut back by overflows, with some patience
// (hysteresis) that only growth restores. Constant: it never moves. All arithmetic in float32, so that histories
// repeat bit for bit (Megatron-LM, core/optimizer/grad_scaler.py).
#pragma once

#include <cstdint>
#include <optional>

#include "config/precision.h"

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

  float scale() const { return scale_; }
  // 1 / scale, rounded once to float32.
  double inv_scale() const { return static_cast<float>(1.0 / static_cast<double>(scale_)); }
  bool constant() const { return args_.constant; }

  // After every step's test, the same on all ranks: `found_inf` says that some gradient was not finite.
  void update(bool found_inf);

  GradScalerState state() const { return {scale_, growth_tracker_, hysteresis_tracker_}; }
  // A constant scale stays the one that was configured. Throws base::Error("optim") for a state that cannot be.
  void load_state(const GradScalerState& state);

 private:
  GradScalerArgs args_;
  float scale_;
  int64_t growth_tracker_ = 0;      // steps without overflow so far
  int64_t hysteresis_tracker_ = 0;  // overflows left; goes on below zero, where each cuts
};

// Constant with precision.loss_scale, dynamic in an fp16 run without it, else none.
std::optional<GradScaler> make_grad_scaler(const config::Precision& precision);

}  // namespace metroplex::optim

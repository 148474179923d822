// Number formats, the loss scale, and what is checked of losses and gradients. "fp64" is a real training dtype:
// layouts are compared in it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace metroplex::config {

struct Precision {
  std::string params_dtype = "fp32";      // fp32 | fp64 | bf16 | fp16: parameters and activations
  bool fp32_residual_connection = false;  // the residual stream, between blocks and stages too
  std::string main_grads_dtype = "auto";  // auto | fp32 | params; auto: fp32, and fp64 in an fp64 run
  double loss_scale = 0.0;                // constant; 0: dynamic in an fp16 run, else none
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1.0;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  bool check_for_nan_in_grad = true;  // off in fp16 with dynamic scaling, which expects them
  bool check_for_large_grads = false;
  double grad_norm_skip_threshold = std::numeric_limits<double>::infinity();

  bool half() const { return params_dtype == "bf16" || params_dtype == "fp16"; }
  bool scales_loss() const { return params_dtype == "fp16" || loss_scale > 0; }
  bool scales_dynamically() const { return params_dtype == "fp16" && loss_scale == 0; }
};

}  // namespace metroplex::config

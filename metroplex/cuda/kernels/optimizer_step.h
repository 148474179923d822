// One optimizer step over a flat range of parameters: the gradient is unscaled and clipped (one factor), moments and
// main parameter are updated, the low-precision parameter is written, in one pass over memory. Arithmetic is in
// float, or in double where the main parameter is; what is stored in fewer bits is decoded and encoded on the way. An
// element's result depends on nothing but its operands (and its block's, with block8), so any division into ranges
// and threads gives the same bits, on any CPU. Pass 1, the sums over gradients, is optimizer_sums.h.
#pragma once

#include <cstdint>

#include "cuda/kernels/number.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

// A moment of the range, read and written; all bytes 0 are zeros. Blocks of block8 start at the start of the range.
struct MomentArray {
  void* data = nullptr;
  Number number = Number::f32;  // f32 | bf16 | block8; f64 where main is
  float* scales = nullptr;      // block8: [block8_scales(n)]
};

// The main parameter is one of: `main` as f32, f64 or bf16; or, with `remainder`, fp32 in two halves (split_float):
// the bf16 `param` and its remainder, and main is null. Besides, `param` may be null where main is the parameter
// itself.
struct OptimizerRange {
  int64_t n = 0;
  const void* grad = nullptr;
  Number grad_number = Number::f32;  // f32 | bf16 | f16; f64 where main is
  void* main = nullptr;
  Number main_number = Number::f32;
  void* param = nullptr;               // written: main rounded to the nearest, ties to even
  Number param_number = Number::bf16;  // f32 | bf16 | f16
  uint16_t* remainder = nullptr;
  MomentArray first, second;  // exp_avg or momentum; exp_avg_sq

  // How moments and a main parameter in fewer than 32 bits are rounded. To the nearest, small changes are lost for
  // good: an exp_avg_sq in bf16 never falls with beta2 = 0.999, since a thousandth is less than half its last bit.
  // Stochastic rounding is right on average; element i draws from (noise_key, noise_start + i), see position_noise.
  bool stochastic = false;
  uint64_t noise_key = 0;  // names seed, step and parameter
  int64_t noise_start = 0;
};

// AdamW (Loshchilov & Hutter, arXiv:1711.05101) as torch.optim.AdamW computes it: decay, moments, then
// p -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps).
struct AdamHyper {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double grad_factor = 1;  // the gradient is multiplied by it first
  int64_t step = 1;        // of this update, from 1
};
void adam_step(const OptimizerRange& range, const AdamHyper& hyper);

// torch.optim.SGD: decay is added to the gradient, the momentum starts as the first gradient. Without momentum
// `first` is not touched.
struct SgdHyper {
  double lr = 0, momentum = 0, weight_decay = 0, grad_factor = 1;
  bool first_step = false;
};
void sgd_step(const OptimizerRange& range, const SgdHyper& hyper);

// Lion (Chen et al., arXiv:2302.06675): p moves by lr against the sign of beta1 m + (1 - beta1) g, with decoupled
// decay; then m = beta2 m + (1 - beta2) g.
struct LionHyper {
  double lr = 0, beta1 = 0.9, beta2 = 0.99, weight_decay = 0, grad_factor = 1;
};
void lion_step(const OptimizerRange& range, const LionHyper& hyper);

// The same on a GPU, enqueued on `stream`; all arrays are of the device. What is stored may differ from the CPU twin
// by the rounding of fused multiply-adds. base::Error("cuda", ...) when nothing was launched.
void adam_step_cuda(const OptimizerRange& range, const AdamHyper& hyper, CUstream_st* stream);
void sgd_step_cuda(const OptimizerRange& range, const SgdHyper& hyper, CUstream_st* stream);
void lion_step_cuda(const OptimizerRange& range, const LionHyper& hyper, CUstream_st* stream);

}  // namespace metroplex::cuda::kernels

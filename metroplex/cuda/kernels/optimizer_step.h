// One optimizer step over a flat range of parameters: the gradient is unscaled and clipped (one factor), moments and
// main parameter are updated, the low-precision parameter is written, in one pass over memory. Arithmetic is in
// float, or in double where the main parameter is; what is stored in fewer bits is decoded and encoded on the way. An
// element's result depends on nothing but its operands (and its block's, with block8), so any division into ranges
// and threads gives the same bits, on any CPU. Pass 1, the sums over gradients, is below.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/kernels/number.h"
#include "cuda/kernels/step_state.h"

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
  uint64_t noise_key = 0;  // names seed and parameter; the number of the update comes to it, see step_key
  int64_t noise_start = 0;
};

// The noise of an update: a step that was held back draws what the next one will.
constexpr uint64_t step_key(uint64_t noise_key, double number) {
  return noise_key ^ ((static_cast<uint64_t>(number) - 1) << 32);
}

// All updates read `place` once, ahead of their loops; where values->updates is 0 they do nothing more.

// AdamW (Loshchilov & Hutter, arXiv:1711.05101) as torch.optim.AdamW computes it: decay, moments, then
// p -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps).
struct AdamHyper {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // the rates hold powers of the same betas
};
void adam_step(const OptimizerRange& range, const AdamHyper& hyper, const StepPlace& place);

// torch.optim.SGD: decay is added to the gradient, the momentum starts as the first gradient. Without momentum
// `first` is not touched.
struct SgdHyper {
  double momentum = 0;
};
void sgd_step(const OptimizerRange& range, const SgdHyper& hyper, const StepPlace& place);

// Lion (Chen et al., arXiv:2302.06675): p moves by lr against the sign of beta1 m + (1 - beta1) g, with decoupled
// decay; then m = beta2 m + (1 - beta2) g.
struct LionHyper {
  double beta1 = 0.9, beta2 = 0.99;
};
void lion_step(const OptimizerRange& range, const LionHyper& hyper, const StepPlace& place);

// The same on a GPU, enqueued on `stream`, of many ranges at once: up to kRangesOfLaunch neighbours in the list that
// compute in one type are a launch, whose arguments hold them. All arrays are of the device. What is stored may
// differ from the CPU twin by the rounding of fused multiply-adds. base::Error("cuda", ...) when nothing was
// launched.
struct RatedRange {
  OptimizerRange range;
  const GroupRates* rates = nullptr;  // of its group
};
constexpr int kRangesOfLaunch = 24;
void adam_step_cuda(const std::vector<RatedRange>& ranges, const AdamHyper& hyper, const StepValues* values,
                    CUstream_st* stream);
void sgd_step_cuda(const std::vector<RatedRange>& ranges, const SgdHyper& hyper, const StepValues* values,
                   CUstream_st* stream);
void lion_step_cuda(const std::vector<RatedRange>& ranges, const LionHyper& hyper, const StepValues* values,
                    CUstream_st* stream);

// Pass 1 of an optimizer step: what gradient norm, overflow test and count of zeros need, in one pass over a flat
// range. Sums are in double, in fixed blocks added in order: equal for any number of threads.

struct GradientSums {
  double sum_of_squares = 0;  // of all elements: NaN or infinite where one is
  int64_t num_nonfinite = 0;
  int64_t num_zeros = 0;  // padding included
};

// `grad` [n] as f64, f32, bf16 or f16.
struct GradientRange {
  const void* grad = nullptr;
  Number number = Number::f32;
  int64_t n = 0;
  bool counts = true;  // false: of its elements only those that are not finite count
};
GradientSums gradient_sums(const void* grad, Number number, int64_t n);

// Of all ranges, added to *sums one after the other.
struct GradientSumsPlace {
  GradientSums* sums = nullptr;
  GradientSums* workspace = nullptr;  // on a GPU: [gradient_sums_blocks() of all ranges]
};
void add_gradient_sums(const std::vector<GradientRange>& ranges, const GradientSumsPlace& place);

// The same on a GPU, enqueued on `stream`, in two launches for up to 96 ranges, whose arguments hold them. All
// pointers are of the device. The order of addition is fixed, and another than the CPU's. base::Error("cuda", ...)
// when nothing was launched.
constexpr int64_t kSumsBlock = 16384;
constexpr int64_t gradient_sums_blocks(int64_t n) { return (n + kSumsBlock - 1) / kSumsBlock; }
void gradient_sums_cuda(const std::vector<GradientRange>& ranges, const GradientSumsPlace& place,
                        CUstream_st* stream);

}  // namespace metroplex::cuda::kernels

// One optimizer step over a flat range of parameters, in one pass over memory. It unscales and clips the gradient
// (one factor), updates moments and main parameter, and writes the low-precision parameter. Arithmetic is in float,
// or in double if the main parameter is f64; smaller storage types are converted on the fly. An element's result
// depends only on its operands (and on its block with block8). Any division into ranges and threads therefore gives
// the same bits, on any CPU. The gradient sums of pass 1 follow below.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/adam.h"
#include "kernels/lion.h"
#include "kernels/number.h"
#include "kernels/sgd.h"
#include "kernels/step_state.h"

struct CUstream_st;

namespace metroplex::kernels {

// A moment of the range, updated in place; all-zero bytes decode to zeros. The first block8 block begins at the
// start of the range.
struct MomentArray {
  void* data = nullptr;
  Number number = Number::f32;  // f32, bf16 or block8; f64 if main is
  float* scales = nullptr;      // block8: [block8_scales(n)]
};

// The main parameter is `main` (f32, f64 or bf16). With `remainder`, it is fp32 split into the bf16 `param` and
// `remainder` (split_float), and `main` is null. `param` may be null if `main` is the parameter itself.
struct OptimizerRange {
  int64_t n = 0;
  const void* grad = nullptr;
  Number grad_number = Number::f32;  // f32, bf16 or f16; f64 if main is
  void* main = nullptr;
  Number main_number = Number::f32;
  void* param = nullptr;               // output: main rounded to nearest, ties to even
  Number param_number = Number::bf16;  // f32, bf16 or f16
  uint16_t* remainder = nullptr;
  MomentArray first, second;  // exp_avg or momentum; exp_avg_sq

  // Rounding of moments and main parameters with fewer than 32 bits. Rounding to nearest permanently loses small
  // changes: an exp_avg_sq in bf16 never decreases with beta2 = 0.999, because 1/1000 is less than half its last
  // bit. Stochastic rounding is unbiased; element i uses the random bits of (noise_key, noise_start + i), see
  // position_noise.
  bool stochastic = false;
  uint64_t noise_key = 0;  // derived from seed and parameter; combined with the update number, see step_key
  int64_t noise_start = 0;
};

// Noise key of an update. A skipped step has the same number as its successor, and thus the same noise.
constexpr uint64_t step_key(uint64_t noise_key, double number) {
  return noise_key ^ ((static_cast<uint64_t>(number) - 1) << 32);
}

// All updates read `place` once, before their loops. If values->updates is 0 they change nothing.

void adam_step(const OptimizerRange& range, const AdamHyper& hyper, const StepPlace& place);
void sgd_step(const OptimizerRange& range, const SgdHyper& hyper, const StepPlace& place);
void lion_step(const OptimizerRange& range, const LionHyper& hyper, const StepPlace& place);

// GPU versions, enqueued on `stream`, for many ranges at once. Up to kRangesOfLaunch consecutive ranges with the same
// arithmetic type share a launch, whose arguments contain them. All arrays are device memory. Results may differ from
// the CPU's by the rounding of fused multiply-adds. They throw base::Error("cuda", ...) if the launch fails.
struct RatedRange {
  OptimizerRange range;
  const GroupRates* rates = nullptr;  // for its parameter group
};
constexpr int kRangesOfLaunch = 192;
void adam_step_cuda(const std::vector<RatedRange>& ranges, const AdamHyper& hyper, const StepValues* values,
                    CUstream_st* stream);
void sgd_step_cuda(const std::vector<RatedRange>& ranges, const SgdHyper& hyper, const StepValues* values,
                   CUstream_st* stream);
void lion_step_cuda(const std::vector<RatedRange>& ranges, const LionHyper& hyper, const StepValues* values,
                    CUstream_st* stream);

// Pass 1 of an optimizer step: sums for gradient norm, overflow test and count of zeros, in one pass over a flat
// range. Sums are in double, in fixed blocks added in order, so they have the same bits for any number of threads.

struct GradientSums {
  double sum_of_squares = 0;  // over all elements; NaN or infinite if any element is
  int64_t num_nonfinite = 0;
  int64_t num_zeros = 0;  // includes padding
};

constexpr int kSumsOfLaunch = 768;
constexpr int64_t kSumsBlock = 16384;
constexpr int64_t gradient_sums_blocks(int64_t n) { return (n + kSumsBlock - 1) / kSumsBlock; }

// `grad` [n] as f64, f32, bf16 or f16.
struct GradientRange {
  const void* grad = nullptr;
  Number number = Number::f32;
  int64_t n = 0;
  bool counts = true;   // false: only non-finite values of this range are counted
  bool summed = false;  // `grad` is ShardSum::sums of the n elements, which are not read
};
GradientSums gradient_sums(const void* grad, Number number, int64_t n);

// Adds the sums of all ranges to *sums, in order.
struct GradientSumsPlace {
  GradientSums* sums = nullptr;
  GradientSums* workspace = nullptr;  // GPU only: [gradient_sums_blocks() of all ranges]
};
void add_gradient_sums(const std::vector<GradientRange>& ranges, const GradientSumsPlace& place);

// GPU version, enqueued on `stream`, in two launches for up to kSumsOfLaunch ranges, whose arguments contain them.
// All pointers are device pointers. The order of addition is fixed, but differs from the CPU's. Throws
// base::Error("cuda", ...) if the launch fails.
void gradient_sums_cuda(const std::vector<GradientRange>& ranges, const GradientSumsPlace& place,
                        CUstream_st* stream);

// Sum of the shards of a half gradient that a rank received from `ranks` ranks: in fp32, in the order of the ranks,
// rounded once. One pass reads each shard once and also computes the gradient sums of pass 1.
struct ReceivedShards {
  const void* data = nullptr;    // [ranks, size]
  Number number = Number::bf16;  // or f16
  int ranks = 1;
  int64_t size = 0;
  bool adds = false;  // the rounded sum is added to `out` instead, and rounded again
};
// Elements [begin, begin + n) of the shard.
struct ShardSum {
  int64_t begin = 0, n = 0;
  void* out = nullptr;           // [n]
  GradientSums* sums = nullptr;  // of `out` [gradient_sums_blocks(n)], with the bits of pass 1; null: not computed
};
void sum_shards(const std::vector<ShardSum>& all, const ReceivedShards& received);
// GPU version, enqueued on `stream`, in one launch for up to kSumsOfLaunch ranges. All pointers are device pointers.
// Throws base::Error("cuda", ...) if the launch fails.
void sum_shards_cuda(const std::vector<ShardSum>& all, const ReceivedShards& received, CUstream_st* stream);

}  // namespace metroplex::kernels

// Pass 1 of an optimizer step: what gradient norm, overflow test and count of zeros need, in one pass over a flat
// range. Sums are in double, in fixed blocks added in order: equal for any number of threads.
#pragma once

#include <cstdint>

#include "cuda/kernels/number.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

struct GradientSums {
  double sum_of_squares = 0;  // of all elements: NaN or infinite where one is
  int64_t num_nonfinite = 0;
  int64_t num_zeros = 0;  // padding included
};

// `grad` [n] as f64, f32, bf16 or f16.
GradientSums gradient_sums(const void* grad, Number number, int64_t n);

// The same on a GPU, enqueued on `stream`: adds to *sums, so that one result serves several ranges. All pointers are
// of the device. The order of addition is fixed, and another than the CPU's. base::Error("cuda", ...) when nothing
// was launched.
struct GradientSumsPlace {
  GradientSums* sums = nullptr;
  GradientSums* workspace = nullptr;  // [gradient_sums_blocks(n)]
};
constexpr int64_t kSumsBlock = 16384;
constexpr int64_t gradient_sums_blocks(int64_t n) { return (n + kSumsBlock - 1) / kSumsBlock; }
void gradient_sums_cuda(const void* grad, Number number, int64_t n, const GradientSumsPlace& place,
                        CUstream_st* stream);

}  // namespace metroplex::cuda::kernels

// Sinkhorn scaling of exp(logits), as in Megatron-LM's routing (core/transformer/moe/moe_utils.py). It alternates
//   d0 = 1 / rows / (cost d1 + 1e-8),  d1 = 1 / columns / (cost^T d0 + 1e-8)
// from d1 = 1 on, until the mean change of d1 is at most the tolerance or NaN; out = d0 cost d1. The kernel tests the
// change itself, so the host reads nothing. It stops after kMostSinkhornTurns iterations in any case.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace metroplex::kernels {

constexpr int64_t kMostSinkhornTurns = 4096;  // logits of std 1 take about 5 iterations, of std 8 a few hundred

struct SinkhornShape {
  int64_t rows = 0, columns = 0;
  double tolerance = 1e-4;
};

// logits and out [rows, columns]; factors [rows + 2 columns] is scratch.
template <class T>
void sinkhorn(const T* logits, T* out, T* factors, const SinkhornShape& shape);

// GPU version, enqueued on `stream`. It uses one thread block and is not optimized for speed. The order of sums
// differs from the CPU's. Throws base::Error("cuda", ...) if the launch fails.
template <class T>
void sinkhorn_cuda(const T* logits, T* out, T* factors, const SinkhornShape& shape, CUstream_st* stream);

}  // namespace metroplex::kernels

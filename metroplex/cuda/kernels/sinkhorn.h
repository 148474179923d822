// Sinkhorn's scaling of exp(logits), as Megatron-LM routes by it (core/transformer/moe/moe_utils.py): in turns
//   d0 = 1 / rows / (cost d1 + 1e-8),  d1 = 1 / columns / (cost^T d0 + 1e-8)
// from d1 = 1 on, until the mean change of d1 is at most the tolerance or is no number; out = d0 cost d1. The kernel
// itself sees the change, so the host reads nothing; it ends after kMostSinkhornTurns in any case.
#pragma once

#include <cstdint>

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

constexpr int64_t kMostSinkhornTurns = 4096;  // logits of standard deviation 1 take about 5, of 8 some hundred

struct SinkhornShape {
  int64_t rows = 0, columns = 0;
  double tolerance = 1e-4;
};

// logits and out [rows, columns]; factors [rows + 2 columns] is room to work in.
template <class T>
void sinkhorn(const T* logits, T* out, T* factors, const SinkhornShape& shape);

// The same on a GPU, enqueued on `stream`, in one block: routing by Sinkhorn is not made for speed. Sums are in
// another order than on the CPU. base::Error("cuda", ...) when nothing was launched.
template <class T>
void sinkhorn_cuda(const T* logits, T* out, T* factors, const SinkhornShape& shape, CUstream_st* stream);

}  // namespace metroplex::cuda::kernels

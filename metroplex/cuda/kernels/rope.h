// Rotary position embedding (Su et al., arXiv 2104.09864): of n rotated dimensions i and i + n/2 (the rotate-half
// form), or 2i and 2i + 1 (interleaved), turn by position * base^(-2i/n). In place on strided heads, so that it runs
// inside the fused qkv tensor.
#pragma once

#include <cstdint>

#include "cuda/kernels/half.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

// Element [s][b][head][i] lies at s * stride_s + b * stride_b + head * stride_head + i.
struct RopeShape {
  int64_t sequence = 0, batch = 0, heads = 0, rotary = 0;  // rotary: the first dimensions of a head that turn, even
  int64_t stride_s = 0, stride_b = 0, stride_head = 0;
  bool interleaved = false;

  // Pair i is dimensions i * step() and i * step() + apart().
  constexpr int64_t step() const { return interleaved ? 2 : 1; }
  constexpr int64_t apart() const { return interleaved ? 1 : rotary / 2; }
};

// cos, sin [sequence, rotary / 2]. direction +1 turns forward, -1 back (the gradient).
template <class T>
void rope(T* x, const Wide<T>* cos, const Wide<T>* sin, int direction, const RopeShape& shape);

// The same on a GPU, enqueued on `stream`; all pointers are of the device. base::Error("cuda", ...) when nothing was
// launched.
template <class T>
void rope_cuda(T* x, const Wide<T>* cos, const Wide<T>* sin, int direction, const RopeShape& shape,
               CUstream_st* stream);

}  // namespace metroplex::cuda::kernels

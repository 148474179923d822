// Rotary position embedding (Su et al., arXiv 2104.09864). With n rotated dimensions, the pairs i and i + n/2
// (rotate-half form) or 2i and 2i + 1 (interleaved) rotate by position * base^(-2i/n). Runs in place on strided
// heads, so that it can be applied inside the fused qkv tensor.
#pragma once

#include <cstdint>

#include "kernels/half.h"

struct CUstream_st;

namespace metroplex::kernels {

// Element [s][b][head][i] has offset s * stride_s + b * stride_b + head * stride_head + i.
struct RopeShape {
  int64_t sequence = 0, batch = 0, heads = 0, rotary = 0;  // rotary: number of rotated dimensions, even
  int64_t stride_s = 0, stride_b = 0, stride_head = 0;
  bool interleaved = false;

  // Pair i consists of dimensions i * step() and i * step() + apart().
  constexpr int64_t step() const { return interleaved ? 2 : 1; }
  constexpr int64_t apart() const { return interleaved ? 1 : rotary / 2; }
};

// cos, sin [sequence, rotary / 2]. direction +1 rotates forward, -1 backward (for the gradient).
template <class T>
void rope(T* x, const Wide<T>* cos, const Wide<T>* sin, int direction, const RopeShape& shape);

// GPU version, enqueued on `stream`; all pointers are device pointers. Throws base::Error("cuda", ...) if the launch
// fails.
template <class T>
void rope_cuda(T* x, const Wide<T>* cos, const Wide<T>* sin, int direction, const RopeShape& shape,
               CUstream_st* stream);

}  // namespace metroplex::kernels

// Splits the product of the fused query, key and value projection into tensors of heads, and joins their gradients.
// The fused tensor is [s, b, groups, heads of all regions, head_dim]: each group has the heads of the first region
// (queries), then those of the next (gates, keys, values). The heads of a region may be normalized (RMSNorm), then
// rotated (rope.h) on the way, with the same bits on the CPU as by norm.h and rope.h.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/half.h"

struct CUstream_st;

namespace metroplex::kernels {

// RMSNorm of the heads of a region.
template <class T>
struct HeadNorm {
  const T* weight = nullptr;  // [head_dim]; null: the heads are not normalized
  double epsilon = 1e-5;
  bool one_plus = false;  // multiplies by 1 + weight
  // [sequence, batch, heads]: split_heads writes it unless null, join_heads reads it.
  Wide<T>* rstd = nullptr;
  // join_heads overwrites it: partial sums of the weight's gradient, [head_dim] each. The CPU writes one line, a GPU
  // head_lines(heads of the region). sum_lines (column_sums.h) sums them.
  Wide<T>* lines = nullptr;
};

// Head h of group g is head g * heads + h. Element [s][b][head][i] has offset
// s * stride_s + b * stride_b + head * stride_head + i.
template <class T>
struct HeadRegion {
  T* x = nullptr;     // null: split_heads skips the region
  int64_t heads = 0;  // per group
  int64_t stride_s = 0, stride_b = 0, stride_head = 0;
  const Wide<T>*cos = nullptr, *sin = nullptr;  // [sequence, rotary / 2]; null: the heads are not rotated
  HeadNorm<T> norm = {};
};

template <class T>
struct HeadRegions {
  static constexpr int kMost = 4;
  std::array<HeadRegion<T>, kMost> regions;  // the last ones may have no heads
  const T* raw = nullptr;                    // of join_heads with norms: `fused` of split_heads
  // join_heads without norms: null, or overwritten with partial sums of the rows of `fused`, for sum_lines
  // (column_sums.h). The CPU writes one line, a GPU column_lines. Then a GPU reads rotated elements and angles twice.
  Wide<T>* sums = nullptr;
};

struct HeadsShape {
  int64_t sequence = 0, batch = 0, groups = 0, head_dim = 0, rotary = 0;  // rotary: of rotated regions, even
  bool interleaved = false;
};

constexpr int64_t kMostNormedHead = 256;  // head_dim of normalized regions: the threads of a warp hold a head

// With a norm, a GPU's thread block processes up to heads_per_line adjacent heads of a region [sequence, batch,
// heads] and writes one line. The number of lines depends only on the number of heads.
constexpr int64_t heads_per_line(int64_t heads) {
  constexpr int64_t kFewest = 128, kMostLines = 1024;
  const int64_t of_most = (heads + kMostLines - 1) / kMostLines;
  return of_most < kFewest ? kFewest : of_most;
}
constexpr int64_t head_lines(int64_t heads) { return (heads + heads_per_line(heads) - 1) / heads_per_line(heads); }

template <class T>
constexpr int64_t fused_heads(const HeadRegions<T>& regions) {
  int64_t heads = 0;
  for (const HeadRegion<T>& region : regions.regions) heads += region.heads;
  return heads;
}

// Overwrites the regions with the heads of `fused`, which are normalized and rotated forward.
template <class T>
void split_heads(const T* fused, const HeadRegions<T>& to, const HeadsShape& shape);
// Overwrites `fused` with the gradient of split_heads: the heads of the regions, which are rotated backward and pass
// backward through their norms.
template <class T>
void join_heads(T* fused, const HeadRegions<T>& from, const HeadsShape& shape);

// GPU versions, enqueued on `stream`; all pointers are device pointers. They throw base::Error("cuda", ...) if the
// launch fails.
template <class T>
void split_heads_cuda(const T* fused, const HeadRegions<T>& to, const HeadsShape& shape, CUstream_st* stream);
template <class T>
void join_heads_cuda(T* fused, const HeadRegions<T>& from, const HeadsShape& shape, CUstream_st* stream);

}  // namespace metroplex::kernels

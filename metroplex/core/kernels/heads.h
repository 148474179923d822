// Splits the product of the fused query, key and value projection into tensors of heads, and joins their gradients.
// The fused tensor is [s, b, groups, heads of all regions, head_dim]: each group has the heads of the first region
// (queries), then those of the next (gates, keys, values). A region may be rotated on the way (rope.h).
#pragma once

#include <array>
#include <cstdint>

#include "kernels/half.h"

struct CUstream_st;

namespace metroplex::kernels {

// Head h of group g is head g * heads + h. Element [s][b][head][i] has offset
// s * stride_s + b * stride_b + head * stride_head + i.
template <class T>
struct HeadRegion {
  T* x = nullptr;
  int64_t heads = 0;  // per group
  int64_t stride_s = 0, stride_b = 0, stride_head = 0;
  const Wide<T>*cos = nullptr, *sin = nullptr;  // [sequence, rotary / 2]; null: the heads are copied
};

template <class T>
struct HeadRegions {
  static constexpr int kMost = 4;
  std::array<HeadRegion<T>, kMost> regions;  // the last ones may have no heads
};

struct HeadsShape {
  int64_t sequence = 0, batch = 0, groups = 0, head_dim = 0, rotary = 0;  // rotary: of rotated regions, even
  bool interleaved = false;
};

template <class T>
constexpr int64_t fused_heads(const HeadRegions<T>& regions) {
  int64_t heads = 0;
  for (const HeadRegion<T>& region : regions.regions) heads += region.heads;
  return heads;
}

// Overwrites the regions with the heads of `fused`, which are rotated forward.
template <class T>
void split_heads(const T* fused, const HeadRegions<T>& to, const HeadsShape& shape);
// Overwrites `fused` with the heads of the regions, which are rotated backward: the gradient of split_heads.
template <class T>
void join_heads(T* fused, const HeadRegions<T>& from, const HeadsShape& shape);

// GPU versions, enqueued on `stream`; all pointers are device pointers. They throw base::Error("cuda", ...) if the
// launch fails.
template <class T>
void split_heads_cuda(const T* fused, const HeadRegions<T>& to, const HeadsShape& shape, CUstream_st* stream);
template <class T>
void join_heads_cuda(T* fused, const HeadRegions<T>& from, const HeadsShape& shape, CUstream_st* stream);

}  // namespace metroplex::kernels

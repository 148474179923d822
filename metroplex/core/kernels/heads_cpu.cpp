#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/heads.h"
#include "kernels/rope_rows.h"
#include "kernels/vector_math.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {
namespace {

template <class T>
struct Operands {
  T* fused;
  HeadRegions<T> all;
  int64_t heads;  // per group of `fused`
  bool splits;
};

template <class T>
MPX_INLINE void rows_loop(const Operands<T>& operands, const HeadsShape& shape, int64_t begin, int64_t end) {
  const int64_t half = shape.rotary / 2;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t place = row / shape.batch, sample = row % shape.batch;
    T* fused = operands.fused + row * shape.groups * operands.heads * shape.head_dim;
    for (int64_t group = 0; group < shape.groups; ++group) {
      for (const HeadRegion<T>& region : operands.all.regions) {
        for (int64_t head = group * region.heads; head < (group + 1) * region.heads;
             ++head, fused += shape.head_dim) {
          T* const own = region.x + place * region.stride_s + sample * region.stride_b + head * region.stride_head;
          const T* const from = operands.splits ? fused : own;
          T* const to = operands.splits ? own : fused;
          if (region.cos != nullptr) {
            rotate_head(from, to, region.cos + place * half, region.sin + place * half,
                        Wide<T>(operands.splits ? 1 : -1), half, shape.interleaved);
          }
          const int64_t copied = region.cos != nullptr ? shape.rotary : 0;
          std::copy(from + copied, from + shape.head_dim, to + copied);
        }
      }
    }
  }
}

#define MPX_ROWS(clones, T)                                                                                \
  clones void run_rows(const Operands<T>& operands, const HeadsShape& shape, int64_t begin, int64_t end) { \
    rows_loop(operands, shape, begin, end);                                                                \
  }
MPX_ROWS(MPX_VECTOR_CLONES, float)
MPX_ROWS(MPX_VECTOR_CLONES, double)
MPX_ROWS(MPX_HALF_CLONES, Bf16)
MPX_ROWS(MPX_HALF_CLONES, F16)
#undef MPX_ROWS

template <class T>
void run(const Operands<T>& operands, const HeadsShape& shape) {
  const int64_t row = std::max<int64_t>(1, shape.groups * operands.heads * shape.head_dim);
  at::parallel_for(0, shape.sequence * shape.batch, std::max<int64_t>(1, 16384 / row),
                   [&](int64_t begin, int64_t end) { run_rows(operands, shape, begin, end); });
}

}  // namespace

template <class T>
void split_heads(const T* fused, const HeadRegions<T>& to, const HeadsShape& shape) {
  run<T>({const_cast<T*>(fused), to, fused_heads(to), true}, shape);
}

template <class T>
void join_heads(T* fused, const HeadRegions<T>& from, const HeadsShape& shape) {
  run<T>({fused, from, fused_heads(from), false}, shape);
}

#define MPX_INSTANTIATE(T)                                                          \
  template void split_heads<T>(const T*, const HeadRegions<T>&, const HeadsShape&); \
  template void join_heads<T>(T*, const HeadRegions<T>&, const HeadsShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "kernels/column_sums.h"
#include "kernels/heads.h"
#include "kernels/norm_rows.h"
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
MPX_INLINE void rotate_or_copy(const T* from, T* to, const HeadRegion<T>& region, const HeadsShape& shape,
                               int64_t place, Wide<T> sign) {
  const int64_t half = shape.rotary / 2, copied = region.cos != nullptr ? shape.rotary : 0;
  if (region.cos != nullptr)
    rotate_head(from, to, region.cos + place * half, region.sin + place * half, sign, half, shape.interleaved);
  if (from != to) std::copy(from + copied, from + shape.head_dim, to + copied);
}

// Calls each(region number, place, index of the head in the region, head in `fused`, head in the region) for rows
// [begin, end).
template <class T, class Each>
MPX_INLINE void for_heads(const Operands<T>& operands, const HeadsShape& shape, int64_t begin, int64_t end,
                          const Each& each) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t place = row / shape.batch, sample = row % shape.batch;
    T* fused = operands.fused + row * shape.groups * operands.heads * shape.head_dim;
    for (int64_t group = 0; group < shape.groups; ++group) {
      for (size_t which = 0; which < operands.all.regions.size(); ++which) {
        const HeadRegion<T>& region = operands.all.regions[which];
        for (int64_t head = group * region.heads; head < (group + 1) * region.heads;
             ++head, fused += shape.head_dim) {
          if (region.x == nullptr) continue;
          T* const own = region.x + place * region.stride_s + sample * region.stride_b + head * region.stride_head;
          each(which, place, row * shape.groups * region.heads + head, fused, own);
        }
      }
    }
  }
}

template <class T>
MPX_INLINE void rows_loop(const Operands<T>& operands, const HeadsShape& shape, int64_t begin, int64_t end) {
  for_heads(operands, shape, begin, end, [&](size_t which, int64_t place, int64_t, T* fused, T* own) {
    const HeadRegion<T>& region = operands.all.regions[which];
    operands.splits ? rotate_or_copy<T>(fused, own, region, shape, place, Wide<T>(1))
                    : rotate_or_copy<T>(own, fused, region, shape, place, Wide<T>(-1));
  });
}

#define MPX_ROWS(clones, T)                                                                                         \
  clones void run_rows(const Operands<T>& operands, const HeadsShape& shape, int64_t begin, int64_t end) {          \
    rows_loop(operands, shape, begin, end);                                                                         \
  }                                                                                                                 \
  clones void rotate_one(const T* from, T* to, const HeadRegion<T>& region, const HeadsShape& shape, int64_t place, \
                         Wide<T> sign) {                                                                            \
    rotate_or_copy(from, to, region, shape, place, sign);                                                           \
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

template <class T>
bool has_norm(const HeadRegions<T>& all) {
  return std::any_of(all.regions.begin(), all.regions.end(),
                     [](const HeadRegion<T>& region) { return region.norm.weight != nullptr; });
}

// The weights of the regions' norms.
template <class T>
class NormWeights {
 public:
  NormWeights(const HeadRegions<T>& all, const HeadsShape& shape) {
    for (size_t which = 0; which < rows_.size(); ++which) {
      const HeadNorm<T>& norm = all.regions[which].norm;
      rows_[which].emplace(norm.weight, shape.head_dim, norm.one_plus);
    }
  }
  const Wide<T>* operator[](size_t which) const { return rows_[which]->data(); }

 private:
  std::array<std::optional<WideRow<T>>, HeadRegions<T>::kMost> rows_;
};

NormShape norm_shape(int64_t rows, const HeadsShape& shape, double epsilon) {
  return {rows, shape.head_dim, epsilon, /*rms=*/true};
}

template <class T>
void split_normed(const Operands<T>& operands, const HeadsShape& shape) {
  const NormWeights<T> weights(operands.all, shape);
  at::parallel_for(0, shape.sequence * shape.batch, 1, [&](int64_t begin, int64_t end) {
    for_heads(operands, shape, begin, end, [&](size_t which, int64_t place, int64_t index, T* fused, T* own) {
      const HeadRegion<T>& region = operands.all.regions[which];
      if (weights[which] == nullptr) return rotate_one(fused, own, region, shape, place, Wide<T>(1));
      Wide<T> unused;
      Wide<T>* const rstd = region.norm.rstd != nullptr ? region.norm.rstd + index : &unused;
      norm_forward_rows(NormForward<T, T, Wide<T>>{fused, weights[which], nullptr, own, nullptr, rstd},
                        norm_shape(1, shape, region.norm.epsilon), 0, 1);
      rotate_one(own, own, region, shape, place, Wide<T>(1));
    });
  });
}

template <class T>
void join_normed(const Operands<T>& operands, const HeadsShape& shape) {
  const NormWeights<T> weights(operands.all, shape);
  const NormShape sums = norm_shape(shape.sequence * shape.batch, shape, 0);
  std::vector<NormBlocks<Wide<T>>> blocks(operands.all.regions.size(), {sums, false});
  const auto run_block = [&](int64_t block) {
    std::vector<T> dy(static_cast<size_t>(shape.head_dim));
    const auto join = [&](size_t which, int64_t place, int64_t index, T* fused, T* own) {
      const HeadRegion<T>& region = operands.all.regions[which];
      if (weights[which] == nullptr) return rotate_one(own, fused, region, shape, place, Wide<T>(-1));
      rotate_one(own, dy.data(), region, shape, place, Wide<T>(-1));
      NormBackward<T, T, Wide<T>> norm{dy.data(), operands.all.raw + (fused - operands.fused), weights[which]};
      norm.rstd = region.norm.rstd + index, norm.dx = fused;
      norm_backward_rows(norm, norm_shape(1, shape, region.norm.epsilon), 0, 1, blocks[which].dweight(block),
                         nullptr);
    };
    for_heads(operands, shape, blocks[0].begin(block), blocks[0].end(block), join);
  };
  at::parallel_for(0, blocks[0].count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) run_block(block);
  });
  for (size_t which = 0; which < blocks.size(); ++which)
    if (weights[which] != nullptr) blocks[which].sum(operands.all.regions[which].norm.lines);
}

}  // namespace

template <class T>
void split_heads(const T* fused, const HeadRegions<T>& to, const HeadsShape& shape) {
  const Operands<T> operands{const_cast<T*>(fused), to, fused_heads(to), true};
  has_norm(to) ? split_normed(operands, shape) : run(operands, shape);
}

template <class T>
void join_heads(T* fused, const HeadRegions<T>& from, const HeadsShape& shape) {
  const Operands<T> operands{fused, from, fused_heads(from), false};
  if (has_norm(from)) return join_normed(operands, shape);
  run(operands, shape);
  const int64_t width = shape.groups * operands.heads * shape.head_dim;
  if (from.sums != nullptr) column_sums<T>(from.sums, fused, {shape.sequence * shape.batch, width, width});
}

#define MPX_INSTANTIATE(T)                                                          \
  template void split_heads<T>(const T*, const HeadRegions<T>&, const HeadsShape&); \
  template void join_heads<T>(T*, const HeadRegions<T>&, const HeadsShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels

// The rows of a norm on the CPU, for kernels that do more with a row while it is in the cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/kernels/norm.h"
#include "cuda/kernels/vector_math.h"

#pragma GCC push_options
#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::cuda::kernels {

template <class In, class Out>
MPX_INLINE void norm_forward_row(const NormForward<In, Out>& p, const NormShape& s, int64_t row) {
  using T = Wide<In>;
  const In* __restrict x = p.x + row * s.width;
  Out* __restrict out = p.out + row * s.width;
  const T* __restrict weight = p.weight;
  const T count = static_cast<T>(s.width);
  const T mean = s.rms ? T(0) : lane_sum<T>(s.width, [&](int64_t i) { return load(x[i]); }) / count;
  const T variance =
      lane_sum<T>(s.width, [&](int64_t i) { return (load(x[i]) - mean) * (load(x[i]) - mean); }) / count;
  const T rstd = T(1) / std::sqrt(variance + static_cast<T>(s.epsilon));
  if (p.bias != nullptr) {
    const T* __restrict bias = p.bias;
    for (int64_t i = 0; i < s.width; ++i) out[i] = store<Out>((load(x[i]) - mean) * rstd * weight[i] + bias[i]);
  } else {
    for (int64_t i = 0; i < s.width; ++i) out[i] = store<Out>((load(x[i]) - mean) * rstd * weight[i]);
  }
  if (!s.rms) p.mean[row] = mean;
  p.rstd[row] = rstd;
}

// Adds the row's weight gradients to dweight and dbias [width].
template <class In, class Out>
MPX_INLINE void norm_backward_row(const NormBackward<In, Out>& p, const NormShape& s, int64_t row,
                                  Wide<In>* __restrict dweight, Wide<In>* __restrict dbias) {
  using T = Wide<In>;
  const T* __restrict weight = p.weight;
  const Out* __restrict dy = p.dy + row * s.width;
  const In* __restrict x = p.x + row * s.width;
  In* __restrict dx = p.dx + row * s.width;
  const T mean = s.rms ? T(0) : p.mean[row], rstd = p.rstd[row], count = static_cast<T>(s.width);
  const T sum = s.rms ? T(0) : lane_sum<T>(s.width, [&](int64_t i) { return load(dy[i]) * weight[i]; }) / count;
  const T dot =
      lane_sum<T>(s.width, [&](int64_t i) { return load(dy[i]) * weight[i] * ((load(x[i]) - mean) * rstd); }) / count;
  for (int64_t i = 0; i < s.width; ++i) {
    const T normal = (load(x[i]) - mean) * rstd;
    dx[i] = store<In>(rstd * (load(dy[i]) * weight[i] - sum - normal * dot));
    dweight[i] += load(dy[i]) * normal;
  }
  if (dbias != nullptr) {
    for (int64_t i = 0; i < s.width; ++i) dbias[i] += load(dy[i]);
  }
  if (p.add != nullptr) {
    const In* __restrict add = p.add + row * s.width;
    for (int64_t i = 0; i < s.width; ++i) dx[i] = store<In>(load(dx[i]) + load(add[i]));
  }
}

// Weight gradients of each block of rows, and their sum in the order of the blocks.
template <class T>
class NormBlocks {
 public:
  NormBlocks(const NormShape& shape, bool with_bias)
      : rows_(shape.rows),
        width_(shape.width),
        count_((shape.rows + kRows - 1) / kRows),
        dweight_(static_cast<size_t>(count_ * width_)),
        dbias_(with_bias ? dweight_.size() : 0) {}

  int64_t count() const { return count_; }
  int64_t begin(int64_t block) const { return block * kRows; }
  int64_t end(int64_t block) const { return std::min(rows_, (block + 1) * kRows); }
  T* dweight(int64_t block) { return dweight_.data() + block * width_; }
  T* dbias(int64_t block) { return dbias_.empty() ? nullptr : dbias_.data() + block * width_; }
  void sum(T* dweight, T* dbias) const {
    sum(dweight_, dweight);
    if (dbias != nullptr) sum(dbias_, dbias);
  }

 private:
  static constexpr int64_t kRows = 32;

  void sum(const std::vector<T>& blocks, T* out) const {
    std::fill(out, out + width_, T(0));
    for (int64_t block = 0; block < count_; ++block) {
      const T* line = blocks.data() + block * width_;
      for (int64_t i = 0; i < width_; ++i) out[i] += line[i];
    }
  }

  int64_t rows_, width_, count_;
  std::vector<T> dweight_, dbias_;
};

}  // namespace metroplex::cuda::kernels

#pragma GCC pop_options

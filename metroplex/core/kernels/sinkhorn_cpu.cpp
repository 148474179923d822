#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "kernels/sinkhorn.h"

#pragma GCC optimize("O3")

namespace metroplex::kernels {
namespace {

constexpr double kTiny = 1e-8;

int64_t grain(int64_t other) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, other)); }

// row[r] = share / (sum over columns of cost column + tiny).
template <class T>
void scale_rows(const T* cost, const T* column, T* row, const SinkhornShape& shape) {
  const T share = T(1) / static_cast<T>(shape.rows);
  at::parallel_for(0, shape.rows, grain(shape.columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T sum = 0;
      for (int64_t c = 0; c < shape.columns; ++c) sum += column[c] * cost[r * shape.columns + c];
      row[r] = share / (sum + static_cast<T>(kTiny));
    }
  });
}

// Threads split the columns, so that each sum has a fixed order.
template <class T>
void scale_columns(const T* cost, const T* row, T* column, const SinkhornShape& shape) {
  const T share = T(1) / static_cast<T>(shape.columns);
  at::parallel_for(0, shape.columns, std::max<int64_t>(16, grain(shape.rows)), [&](int64_t begin, int64_t end) {
    std::fill(column + begin, column + end, T(0));
    for (int64_t r = 0; r < shape.rows; ++r) {
      for (int64_t c = begin; c < end; ++c) column[c] += row[r] * cost[r * shape.columns + c];
    }
    for (int64_t c = begin; c < end; ++c) column[c] = share / (column[c] + static_cast<T>(kTiny));
  });
}

}  // namespace

template <class T>
void sinkhorn(const T* logits, T* out, T* factors, const SinkhornShape& shape) {
  T* const row = factors;
  T *column = factors + shape.rows, *next = column + shape.columns;
  for (int64_t i = 0; i < shape.rows * shape.columns; ++i) out[i] = std::exp(logits[i]);
  std::fill(column, column + shape.columns, T(1));
  for (int64_t turn = 0; turn < kMostSinkhornTurns; ++turn) {
    scale_rows(out, column, row, shape);
    scale_columns(out, row, next, shape);
    T change = 0;
    for (int64_t c = 0; c < shape.columns; ++c) change += std::abs(column[c] - next[c]);
    std::swap(column, next);
    if (!(change / static_cast<T>(shape.columns) > static_cast<T>(shape.tolerance))) break;
  }
  for (int64_t r = 0; r < shape.rows; ++r) {
    for (int64_t c = 0; c < shape.columns; ++c) out[r * shape.columns + c] *= column[c] * row[r];
  }
}

template void sinkhorn<float>(const float*, float*, float*, const SinkhornShape&);
template void sinkhorn<double>(const double*, double*, double*, const SinkhornShape&);

}  // namespace metroplex::kernels

#include <ATen/Parallel.h>

#include <cmath>

#include "kernels/norm_rows.h"
#include "kernels/vector_math.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {
namespace {

template <class In, class Out>
MPX_INLINE void norm_forward_row(const NormForward<In, Out, Wide<In>>& forward, const NormShape& shape, int64_t row) {
  using T = Wide<In>;
  const In* __restrict x = forward.x + row * shape.width;
  Out* __restrict out = forward.out + row * shape.width;
  const T* __restrict weight = forward.weight;
  const T count = static_cast<T>(shape.width);
  const T mean = shape.rms ? T(0) : lane_sum<T>(shape.width, [&](int64_t i) { return load(x[i]); }) / count;
  const T variance =
      lane_sum<T>(shape.width, [&](int64_t i) { return (load(x[i]) - mean) * (load(x[i]) - mean); }) / count;
  const T rstd = T(1) / std::sqrt(variance + static_cast<T>(shape.epsilon));
  if (forward.bias != nullptr) {
    const T* __restrict bias = forward.bias;
    for (int64_t i = 0; i < shape.width; ++i) out[i] = store<Out>((load(x[i]) - mean) * rstd * weight[i] + bias[i]);
  } else {
    for (int64_t i = 0; i < shape.width; ++i) out[i] = store<Out>((load(x[i]) - mean) * rstd * weight[i]);
  }
  if (!shape.rms) forward.mean[row] = mean;
  forward.rstd[row] = rstd;
}

// Adds the row's weight gradients to dweight and dbias [width].
template <class In, class Out>
MPX_INLINE void norm_backward_row(const NormBackward<In, Out, Wide<In>>& backward, const NormShape& shape,
                                  int64_t row, Wide<In>* __restrict dweight, Wide<In>* __restrict dbias) {
  using T = Wide<In>;
  const T* __restrict weight = backward.weight;
  const Out* __restrict dy = backward.dy + row * shape.width;
  const In* __restrict x = backward.x + row * shape.width;
  In* __restrict dx = backward.dx + row * shape.width;
  const T mean = shape.rms ? T(0) : backward.mean[row], rstd = backward.rstd[row],
          count = static_cast<T>(shape.width);
  const T sum =
      shape.rms ? T(0) : lane_sum<T>(shape.width, [&](int64_t i) { return load(dy[i]) * weight[i]; }) / count;
  const T dot =
      lane_sum<T>(shape.width, [&](int64_t i) { return load(dy[i]) * weight[i] * ((load(x[i]) - mean) * rstd); }) /
      count;
  for (int64_t i = 0; i < shape.width; ++i) {
    const T normal = (load(x[i]) - mean) * rstd;
    dx[i] = store<In>(rstd * (load(dy[i]) * weight[i] - sum - normal * dot));
    dweight[i] += load(dy[i]) * normal;
  }
  if (dbias != nullptr) {
    for (int64_t i = 0; i < shape.width; ++i) dbias[i] += load(dy[i]);
  }
  if (backward.add != nullptr) {
    const In* __restrict add = backward.add + row * shape.width;
    for (int64_t i = 0; i < shape.width; ++i) dx[i] = store<In>(load(dx[i]) + load(add[i]));
  }
}

}  // namespace

#define MPX_ROWS(Out, In)                                                                                          \
  MPX_HALF_CLONES void norm_forward_rows(const NormForward<In, Out, Wide<In>>& forward, const NormShape& shape,    \
                                         int64_t begin, int64_t end) {                                             \
    for (int64_t row = begin; row < end; ++row) norm_forward_row(forward, shape, row);                             \
  }                                                                                                                \
  MPX_HALF_CLONES void norm_backward_rows(const NormBackward<In, Out, Wide<In>>& backward, const NormShape& shape, \
                                          int64_t begin, int64_t end, Wide<In>* dweight, Wide<In>* dbias) {        \
    for (int64_t row = begin; row < end; ++row) norm_backward_row(backward, shape, row, dweight, dbias);           \
  }
MPX_FOR_ELEMENT_PAIRS(MPX_ROWS)
#undef MPX_ROWS

template <class In, class Out>
void norm_forward(const NormForward<In, Out>& operands, const NormShape& shape) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.width));
  const WideRow<Out> weight(operands.weight, shape.width, shape.one_plus), bias(operands.bias, shape.width);
  const auto wide = widened(operands, weight, bias);
  at::parallel_for(0, shape.rows, grain,
                   [&](int64_t begin, int64_t end) { norm_forward_rows(wide, shape, begin, end); });
}

template <class In, class Out>
void norm_backward(const NormBackward<In, Out>& operands, const NormShape& shape) {
  NormBlocks<Wide<In>> blocks(shape, operands.with_bias);
  const WideRow<Out> weight(operands.weight, shape.width, shape.one_plus);
  const auto wide = widened(operands, weight);
  at::parallel_for(0, blocks.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      norm_backward_rows(wide, shape, blocks.begin(block), blocks.end(block), blocks.dweight(block),
                         blocks.dbias(block));
    }
  });
  blocks.sum(operands.lines);
  sum_dx(operands, operands.dx, shape);
}

#define MPX_INSTANTIATE(Out, In)                                                      \
  template void norm_forward<In, Out>(const NormForward<In, Out>&, const NormShape&); \
  template void norm_backward<In, Out>(const NormBackward<In, Out>&, const NormShape&)
MPX_FOR_ELEMENT_PAIRS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels

// LayerNorm and RMSNorm over the last dimension of [rows, width], forward and backward. Element types as in
// half.h: In for the residual stream, Out for the parameters. In equals Out, or In is float and Out is a half
// type.
#pragma once

#include <cstdint>

#include "kernels/half.h"

struct CUstream_st;

namespace metroplex::kernels {

struct NormShape {
  int64_t rows = 0, width = 0;
  double epsilon = 1e-5;
  bool rms = false;       // no mean, no bias
  bool one_plus = false;  // multiplies by 1 + weight
};

// out = (x - mean) * rstd * weight + bias. Weight is the parameters' type; the CPU version widens them once per call.
template <class In, class Out, class Weight = Out>
struct NormForward {
  const In* x = nullptr;
  const Weight *weight = nullptr, *bias = nullptr;  // [width]; bias may be null
  Out* out = nullptr;
  Wide<In>*mean = nullptr, *rstd = nullptr;  // [rows], saved for backward; mean is unused with rms
};
template <class In, class Out>
void norm_forward(const NormForward<In, Out>& operands, const NormShape& shape);

constexpr int64_t count_norm_sums(bool with_bias, bool with_dx) { return 1 + with_bias + with_dx; }

// dx is rounded to In before `add` is added, as if a separate kernel added it.
template <class In, class Out, class Weight = Out>
struct NormBackward {
  const Out* dy = nullptr;
  const In* x = nullptr;
  const Weight* weight = nullptr;
  const Wide<In>*mean = nullptr, *rstd = nullptr;
  const In* add = nullptr;  // [rows, width] or null: gradient of x from its other readers
  In* dx = nullptr;
  // Overwritten: partial sums of the weight's gradient, with_bias of the bias' gradient, and with_dx of dx, in this
  // order, [width] each per line. The CPU writes one line, a GPU norm_lines(shape). sum_lines (column_sums.h) sums
  // them. dropout_norm_backward sums its own dx.
  Wide<In>* lines = nullptr;
  bool with_bias = false, with_dx = false;

  constexpr int64_t sums() const { return count_norm_sums(with_bias, with_dx); }  // per line
};
// Weight gradients are summed in fixed blocks of rows, so they have the same bits for any number of threads.
template <class In, class Out>
void norm_backward(const NormBackward<In, Out>& operands, const NormShape& shape);

// GPU versions, enqueued on `stream`; all pointers are device pointers. They throw base::Error("cuda", ...) if the
// launch fails.
template <class In, class Out>
void norm_forward_cuda(const NormForward<In, Out>& operands, const NormShape& shape, CUstream_st* stream);
template <class In, class Out>
void norm_backward_cuda(const NormBackward<In, Out>& operands, const NormShape& shape, CUstream_st* stream);

// On a GPU a thread block processes adjacent rows and writes one line of partial weight gradients. The number of
// lines depends only on the number of rows, so sums have the same bits on every GPU. Each of 132 SMs gets up to 8
// blocks. A block has at least 8 rows, or at least 16 if there are more than 256 lines. The lines (2 floats per
// column) then take at most half the memory of a half-type x, a quarter from 4096 rows on, and less from 16384
// rows on.
constexpr int64_t norm_rows_per_line(const NormShape& shape) {
  constexpr int64_t kFewLines = 256, kMostLines = 1024, kFewestRows = 8, kFewestOfMany = 16;
  const int64_t of_few = (shape.rows + kFewLines - 1) / kFewLines,
                of_most = (shape.rows + kMostLines - 1) / kMostLines;
  const int64_t rows = of_few < kFewestOfMany ? of_few : of_most < kFewestOfMany ? kFewestOfMany : of_most;
  return rows < kFewestRows ? kFewestRows : rows;
}
constexpr int64_t norm_lines(const NormShape& shape) {
  return (shape.rows + norm_rows_per_line(shape) - 1) / norm_rows_per_line(shape);
}

}  // namespace metroplex::kernels

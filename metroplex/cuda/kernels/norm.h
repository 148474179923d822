// LayerNorm and RMSNorm over the last dimension of [rows, width], forward and backward. Element
// types as in half.h: In of the residual stream, Out of the parameters; both are equal, or In is float and Out half.
#pragma once

#include <cstdint>

#include "cuda/kernels/half.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

struct NormShape {
  int64_t rows = 0, width = 0;
  double epsilon = 1e-5;
  bool rms = false;       // no mean, no bias
  bool one_plus = false;  // 1 + weight takes the weight's place
};

// out = (x - mean) * rstd * weight + bias. Weight is what the parameters are stored in: the CPU widens them once a
// call.
template <class In, class Out, class Weight = Out>
struct NormForward {
  const In* x = nullptr;
  const Weight *weight = nullptr, *bias = nullptr;  // [width]; bias may be null
  Out* out = nullptr;
  Wide<In>*mean = nullptr, *rstd = nullptr;  // [rows], kept for backward; mean is unused with rms
};
template <class In, class Out>
void norm_forward(const NormForward<In, Out>& operands, const NormShape& shape);

// dx is rounded to In before `add` is added, as if another kernel added it.
template <class In, class Out, class Weight = Out>
struct NormBackward {
  const Out* dy = nullptr;
  const In* x = nullptr;
  const Weight* weight = nullptr;
  const Wide<In>*mean = nullptr, *rstd = nullptr;
  const In* add = nullptr;  // [rows, width] or null: the gradient that comes to x past the norm
  In* dx = nullptr;
  Wide<In>*dweight = nullptr, *dbias = nullptr;  // [width], overwritten; dbias may be null
};
// Weight gradients are sums in fixed blocks of rows: equal for any number of threads.
template <class In, class Out>
void norm_backward(const NormBackward<In, Out>& operands, const NormShape& shape);

// The same on a GPU, enqueued on `stream`; all pointers are of the device. `lines` is room for norm_lines(shape) * 2
// * width numbers. base::Error("cuda", ...) when nothing was launched.
template <class In, class Out>
void norm_forward_cuda(const NormForward<In, Out>& operands, const NormShape& shape, CUstream_st* stream);
template <class In, class Out>
void norm_backward_cuda(const NormBackward<In, Out>& operands, Wide<In>* lines, const NormShape& shape,
                        CUstream_st* stream);

// On a GPU one thread block goes over neighbouring rows and leaves a line of their weight gradients. Lines are a
// function of the rows alone, so that sums have the same bits on every GPU: enough to give each of 132 processors 8
// blocks, of at least 8 rows and, beyond 256 lines, of 16. Then the lines (2 floats a column) take at most half of
// the room of x in a half type, a quarter from 4096 rows on, and less from 16384 on.
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

}  // namespace metroplex::cuda::kernels

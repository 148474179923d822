// LayerNorm and RMSNorm over the last dimension of [rows, width], forward and backward. Element
// types as in half.h: In of the residual stream, Out of the parameters; both are equal, or In is float and Out half.
#pragma once

#include <cstdint>

#include "cuda/kernels/half.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

constexpr int64_t kNormBlockRows = 32;  // rows whose weight gradients are summed together

struct NormShape {
  int64_t rows = 0, width = 0;
  double epsilon = 1e-5;
  bool rms = false;  // no mean, no bias
};

constexpr int64_t norm_blocks(const NormShape& shape) { return (shape.rows + kNormBlockRows - 1) / kNormBlockRows; }

// out = (x - mean) * rstd * weight + bias; mean (unused with rms) and rstd [rows] are kept for backward.
template <class In, class Out>
void norm_forward(const In* x, const Wide<In>* weight, const Wide<In>* bias, Out* out, Wide<In>* mean, Wide<In>* rstd,
                  const NormShape& shape);

template <class In>
struct NormGradients {
  In* dx = nullptr;             // [rows, width]
  Wide<In>* dweight = nullptr;  // [width], overwritten; sums in fixed blocks of rows: equal for any number of threads
  Wide<In>* dbias = nullptr;    // [width] or null
};
template <class In, class Out>
void norm_backward(const Out* dy, const In* x, const Wide<In>* weight, const Wide<In>* mean, const Wide<In>* rstd,
                   const NormGradients<In>& out, const NormShape& shape);

// The same on a GPU, enqueued on `stream`; all pointers are of the device. `blocks` of the backward is room for
// norm_blocks(shape) * 2 * width numbers. base::Error("cuda", ...) when nothing was launched.
template <class In, class Out>
void norm_forward_cuda(const In* x, const Wide<In>* weight, const Wide<In>* bias, Out* out, Wide<In>* mean,
                       Wide<In>* rstd, const NormShape& shape, CUstream_st* stream);
template <class In, class Out>
void norm_backward_cuda(const Out* dy, const In* x, const Wide<In>* weight, const Wide<In>* mean,
                        const Wide<In>* rstd, const NormGradients<In>& out, Wide<In>* blocks, const NormShape& shape,
                        CUstream_st* stream);

}  // namespace metroplex::cuda::kernels

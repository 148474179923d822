// Dropout as a function of where an element is, not of a stream: element e of a row is kept by Philox4x32-10 with the
// row's key and counter (block (start + e) / 4, row counter). Equal in every layout, dtype and replay.
#pragma once

#include <cstdint>

#include "cuda/kernels/half.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

// One row: `width` neighbouring elements of the unsharded tensor of one sample.
struct DropoutRow {
  uint64_t counter = 0;  // names step and sample
  int64_t start = 0;     // index of the row's first element in the sample's unsharded tensor
};

struct DropoutShape {
  const DropoutRow* rows = nullptr;
  int64_t num_rows = 0, width = 0;
  uint64_t key = 0;  // names seed, layer and site
  double probability = 0;
};

// out = x * mask / (1 - p) [+ residual]; `bias` [width] is added to x first. bias and residual may be null, out may
// be x. With probability 0 no mask is drawn and `rows` is not read. Element types as in half.h; In and Out are equal,
// or one is half and the other the fp32 of the residual stream.
template <class In, class Out = In>
void bias_dropout_add(const In* x, const Wide<In>* bias, const Out* residual, Out* out, const DropoutShape& shape);

// The same on a GPU, enqueued on `stream`; all pointers, shape.rows too, are of the device. Draws the mask of its CPU
// twin; kept values may differ from it by the rounding of one product (fused multiply-add). base::Error("cuda", ...)
// when nothing was launched.
template <class In, class Out = In>
void bias_dropout_add_cuda(const In* x, const Wide<In>* bias, const Out* residual, Out* out,
                           const DropoutShape& shape, CUstream_st* stream);

}  // namespace metroplex::cuda::kernels

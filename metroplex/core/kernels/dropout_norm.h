// h = residual + dropout(x + bias) and its norm in one pass over memory, forward and backward. Results are bitwise
// equal to those of dropout.h and norm.h. In is the element type of the residual stream, Out that of the
// parameters and of x.
#pragma once

#include "kernels/dropout.h"
#include "kernels/dropout_block.h"
#include "kernels/norm.h"

namespace metroplex::kernels {

struct DropoutNormShape {
  DropoutShape dropout;
  NormShape norm;  // same rows and width
};

// sum.out must be norm.x.
template <class In, class Out>
void dropout_norm_forward(const DropoutOperands<Out, In>& sum, const NormForward<In, Out>& norm,
                          const DropoutNormShape& shape);

// norm.dx = norm.add + norm_backward(norm.dy), the gradient of the residual; dx = dropout'(norm.dx).
template <class In, class Out>
void dropout_norm_backward(const NormBackward<In, Out>& norm, Out* dx, const DropoutNormShape& shape);

// GPU versions, see norm.h and dropout.h.
template <class In, class Out>
void dropout_norm_forward_cuda(const DropoutOperands<Out, In>& sum, const NormForward<In, Out>& norm,
                               const DropoutNormShape& shape, CUstream_st* stream);
template <class In, class Out>
void dropout_norm_backward_cuda(const NormBackward<In, Out>& norm, Out* dx, const DropoutNormShape& shape,
                                CUstream_st* stream);

}  // namespace metroplex::kernels

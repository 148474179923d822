// A product of cuBLASLt that libtorch does not offer: of 8-bit or 4-bit codes, added to a matrix in the same kernel.
#pragma once

#include <ATen/core/Tensor.h>

namespace metroplex::device {

struct CodeOperand {
  at::Tensor codes;    // [rows, k], contiguous; pairs of 4-bit codes: [rows, k / 2]
  at::Tensor factors;  // in the layout that at::_scaled_mm_v2 takes
  int scaling = 0;     // at::blas::ScalingType
};
struct CodeProduct {
  CodeOperand left, right;  // [m, k], [n, k]
  at::Tensor out;           // [m, n], contiguous: bf16, fp16 or fp32
  bool adds = false;        // to `out`; else overwrites
  at::Tensor scale = {};    // fp32 [1], multiplies the product; undefined: 1
};
// Enqueues out = or += scale * left right^T, with fp32 sums, on the current stream of the GPU. Returns false, without
// having changed anything, if the library has no algorithm for these operands. Throws base::Error("cuda") if a call
// fails or this build has no CUDA.
bool multiply_codes(const CodeProduct& product);

}  // namespace metroplex::device

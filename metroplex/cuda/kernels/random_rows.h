// Random numbers as a function of where they are, not of a stream: element e of a row is made of word (start + e) % 4
// of Philox4x32-10 with the row's key and counter (block (start + e) / 4, row counter), as dropout draws (dropout.h).
#pragma once

#include <cstdint>

#include "cuda/kernels/dropout.h"

namespace metroplex::cuda::kernels {

enum class Noise {
  uniform,  // in (0, 1)
  gumbel    // -log(-log(uniform)): the largest of log(w_i) + noise_i is i with probability w_i / sum w
};

// out [num_rows, width]; the shape's probability is not read. Made in double and rounded once.
template <class T>
void random_rows(T* out, Noise noise, const DropoutShape& shape);
// The same on a GPU, enqueued on `stream`; the logarithms may differ from the CPU's by roundings. base::Error("cuda",
// ...) when nothing was launched.
template <class T>
void random_rows_cuda(T* out, Noise noise, const DropoutShape& shape, CUstream_st* stream);

// Of a word of Philox, in the middle of its cell: never 0 or 1.
constexpr double uniform_double(uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

}  // namespace metroplex::cuda::kernels

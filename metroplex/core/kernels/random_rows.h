// Random numbers as a function of location instead of a random stream. Like dropout (dropout.h), element e of a
// row uses word (start + e) % 4 of Philox4x32-10, with the row's key and counter (block (start + e) / 4, row
// counter).
#pragma once

#include <cstdint>

#include "kernels/dropout.h"

struct CUstream_st;

namespace metroplex::kernels {

enum class Noise {
  uniform,  // in (0, 1)
  gumbel    // -log(-log(uniform)): the largest of log(w_i) + noise_i is i with probability w_i / sum w
};

// out [num_rows, width]; the shape's probability is unused. Values are computed in double and rounded once.
template <class T>
void random_rows(T* out, Noise noise, const DropoutShape& shape);
// GPU version, enqueued on `stream`; logarithms may differ from the CPU's by rounding. Throws base::Error("cuda",
// ...) if the launch fails.
template <class T>
void random_rows_cuda(T* out, Noise noise, const DropoutShape& shape, CUstream_st* stream);

// Converts a Philox word to the center of its interval: never 0 or 1.
constexpr double uniform_double(uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

}  // namespace metroplex::kernels

// Dropout as a function of where an element is, not of a stream: element e of a row is kept by Philox4x32-10 with the
// row's key and counter (block (start + e) / 4, row counter). Equal in every layout, dtype and replay.
#pragma once

#include <cstdint>

#include "cuda/kernels/divided.h"
#include "cuda/kernels/half.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

// Which rows of the samples' unsharded tensors a tensor holds: [row, sample] as an activation [s, b, h] has them, or
// with sample_major [sample, row] as probabilities [b, heads, queries, keys] have them. Row i is first_row + i; or,
// where the tensor holds chosen rows of every `whole` neighbouring ones (queries of a head), row i is
// first_row + i / num_chosen * whole + chosen[i % num_chosen].
struct DropoutRows {
  const int64_t* counters = nullptr;  // [num_samples], of step and sample; read where the kernel runs
  int64_t num_samples = 1, first_row = 0;
  bool sample_major = false;
  const int64_t* chosen = nullptr;  // [num_chosen], read where the kernel runs; null: every row
  int64_t num_chosen = 0, whole = 0;
};

struct DropoutShape {
  DropoutRows rows;
  int64_t num_rows = 0, width = 0;
  uint64_t key = 0;  // names seed, layer and site
  double probability = 0;
};

// `width` neighbouring elements of the unsharded tensor of one sample.
struct DropoutRow {
  uint64_t counter = 0;  // names step and sample
  int64_t start = 0;     // index of the first of them
};

constexpr DropoutRow dropout_row(const DropoutShape& s, int64_t row) {
  const bool major = s.rows.sample_major;
  const Divided at = divided(row, major ? divided(s.num_rows, s.rows.num_samples).quotient : s.rows.num_samples);
  const int64_t sample = major ? at.quotient : at.remainder;
  int64_t inside = major ? at.remainder : at.quotient;
  if (s.rows.chosen != nullptr) {
    const Divided of_chosen = divided(inside, s.rows.num_chosen);
    inside = of_chosen.quotient * s.rows.whole + s.rows.chosen[of_chosen.remainder];
  }
  return {static_cast<uint64_t>(s.rows.counters[sample]), (s.rows.first_row + inside) * s.width};
}

// out = x * mask / (1 - p) [+ residual]; `bias` [width] is added to x first. bias and residual may be null, out may
// be x. Element types as in half.h; In and Out are equal, or one is half and the other the fp32 of the residual
// stream. The CPU widens the bias once a call.
template <class In, class Out = In, class Bias = In>
struct DropoutOperands {
  const In* x = nullptr;
  const Bias* bias = nullptr;
  const Out* residual = nullptr;
  Out* out = nullptr;
};
// With probability 0 no mask is drawn and no counter is read.
template <class In, class Out>
void bias_dropout_add(const DropoutOperands<In, Out>& operands, const DropoutShape& shape);

// The same on a GPU, enqueued on `stream`; all pointers, the counters too, are of the device. Draws the mask of its
// CPU twin; kept values may differ from it by the rounding of one product (fused multiply-add). base::Error("cuda",
// ...) when nothing was launched.
template <class In, class Out>
void bias_dropout_add_cuda(const DropoutOperands<In, Out>& operands, const DropoutShape& shape, CUstream_st* stream);

}  // namespace metroplex::cuda::kernels

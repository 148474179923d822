// Dropout whose mask is a function of the element's location instead of a random stream. Philox4x32-10 with the
// row's key and counter (block (start + e) / 4, row counter) decides whether element e of a row is kept. The mask
// is the same in every layout, dtype and replay.
#pragma once

#include <cstdint>

#include "kernels/divided.h"
#include "kernels/half.h"

struct CUstream_st;

namespace metroplex::kernels {

// Maps a tensor's rows to rows of the samples' unsharded tensors. Rows are ordered [row, sample] for an activation
// [s, b, h]. With sample_major, they are [sample, row] for probabilities [b, heads, queries, keys]. Row i is
// first_row + i. If `chosen` is set, the tensor holds only the rows listed in `chosen` of every `whole` consecutive
// rows (the queries of a head). Row i is then first_row + i / num_chosen * whole + chosen[i % num_chosen].
struct DropoutRows {
  const int64_t* counters = nullptr;  // [num_samples], from step and sample; on the kernel's device
  int64_t num_samples = 1, first_row = 0;
  bool sample_major = false;
  const int64_t* chosen = nullptr;  // [num_chosen], on the kernel's device; null: every row
  int64_t num_chosen = 0, whole = 0;
};

struct DropoutShape {
  DropoutRows rows;
  int64_t num_rows = 0, width = 0;
  uint64_t key = 0;  // derived from seed, layer and site
  double probability = 0;
};

// `width` consecutive elements of the unsharded tensor of one sample.
struct DropoutRow {
  uint64_t counter = 0;  // derived from step and sample
  int64_t start = 0;     // index of the first element
};

constexpr DropoutRow dropout_row(const DropoutShape& shape, int64_t row) {
  const bool major = shape.rows.sample_major;
  const Divided at =
      divided(row, major ? divided(shape.num_rows, shape.rows.num_samples).quotient : shape.rows.num_samples);
  const int64_t sample = major ? at.quotient : at.remainder;
  int64_t inside = major ? at.remainder : at.quotient;
  if (shape.rows.chosen != nullptr) {
    const Divided of_chosen = divided(inside, shape.rows.num_chosen);
    inside = of_chosen.quotient * shape.rows.whole + shape.rows.chosen[of_chosen.remainder];
  }
  return {static_cast<uint64_t>(shape.rows.counters[sample]), (shape.rows.first_row + inside) * shape.width};
}

// out = x * mask / (1 - p) [+ residual]; `bias` [width] is added to x first. bias and residual may be null; out may
// be x. Element types are those of half.h. In and Out are equal, or one is a half type and the other is fp32 (the
// residual stream). The CPU version widens the bias once per call.
template <class In, class Out = In, class Bias = In>
struct DropoutOperands {
  const In* x = nullptr;
  const Bias* bias = nullptr;
  const Out* residual = nullptr;
  Out* out = nullptr;
};
// With probability 0, the mask is not computed and the counters are not read.
template <class In, class Out>
void bias_dropout_add(const DropoutOperands<In, Out>& operands, const DropoutShape& shape);

// GPU version, enqueued on `stream`; all pointers, including counters, are device pointers. The mask equals the
// CPU's. Kept values may differ by the rounding of one product (fused multiply-add). Throws base::Error("cuda", ...)
// if the launch fails.
template <class In, class Out>
void bias_dropout_add_cuda(const DropoutOperands<In, Out>& operands, const DropoutShape& shape, CUstream_st* stream);

}  // namespace metroplex::kernels

// Sorts rows by expert and restores their order: computes the row of each assignment of a token to an expert, gathers
// the rows, and sums the results. All numbers stay on the device: only kernels read the row counts.
#pragma once

#include <cstdint>

#include "kernels/half.h"

struct CUstream_st;

namespace metroplex::kernels {

// Assignments a = t k + j of tokens t to experts[a]. Assignments to the experts [first, first + num_experts) get
// rows, ordered by expert, then by a. Experts are grouped into chunks of `chunk` consecutive ones, and each chunk has
// `copies` consecutive copies. With `capacity` every expert has that many rows, padded at the end.
struct PermutationShape {
  int64_t assignments = 0, num_rows = 0;  // num_rows: buffer size
  int64_t first = 0, num_experts = 0, chunk = 0;
  int64_t copies = 1, capacity = 0;
};

// rows [assignments, copies]: the row of each copy, -1 if the expert is not in the range. source [num_rows]: the
// assignment of each row, -1 for padding. counts [num_experts]: assignments of each expert.
struct PermutationPlan {
  int64_t *rows, *source, *counts;
};
void plan_permutation(const int64_t* experts, const PermutationPlan& plan, const PermutationShape& shape);

// Computes the destination of rows received from several ranks, each sorted by expert, so that they are sorted by
// expert over all ranks. table [ranks, num_experts]: numbers of received rows. Input rows are ordered by rank, then
// by expert; if `capacity` is not 0, each expert's rows from one rank are padded to it. rows [num_in]: destination of
// each row, -1 for padding. source [num_out]: input row of each output row, -1 for padding. counts [num_experts].
struct RegroupShape {
  int64_t ranks = 0, num_experts = 0, capacity = 0;
  int64_t num_in = 0, num_out = 0;
};
void plan_regroup(const int64_t* table, const PermutationPlan& plan, const RegroupShape& shape);

// out [num_rows, width]: row r is row source[r] / divisor of x; padding rows are unchanged.
struct RowsShape {
  int64_t num_rows = 0, width = 0, divisor = 1;
};
// A number per row that moves with it: number r of `out` is number source[r] of `from`. bytes: 4 or 8; 0: none.
struct RowNumbers {
  const void* from = nullptr;
  void* out = nullptr;
  int bytes = 0;

  constexpr MPX_INLINE void move(int64_t source, int64_t row) const {
    if (bytes == 4) static_cast<uint32_t*>(out)[row] = static_cast<const uint32_t*>(from)[source];
    if (bytes == 8) static_cast<uint64_t*>(out)[row] = static_cast<const uint64_t*>(from)[source];
  }
};
template <class T>
void permute_rows(const T* x, const int64_t* source, T* out, const RowsShape& shape, const RowNumbers& numbers);

// out [tokens, width]: row t is the sum of the rows rows[t, 0], ..., rows[t, terms - 1] of x in this order, in the
// wide type; -1 is skipped.
struct SumShape {
  int64_t tokens = 0, terms = 0, width = 0;
};
template <class T>
void sum_rows(const T* x, const int64_t* rows, T* out, const SumShape& shape);

// GPU versions, enqueued on `stream`; all pointers are device pointers. They throw base::Error("cuda", ...) if the
// launch fails.
void plan_permutation_cuda(const int64_t* experts, const PermutationPlan& plan, const PermutationShape& shape,
                           CUstream_st* stream);
void plan_regroup_cuda(const int64_t* table, const PermutationPlan& plan, const RegroupShape& shape,
                       CUstream_st* stream);
template <class T>
void permute_rows_cuda(const T* x, const int64_t* source, T* out, const RowsShape& shape, const RowNumbers& numbers,
                       CUstream_st* stream);
template <class T>
void sum_rows_cuda(const T* x, const int64_t* rows, T* out, const SumShape& shape, CUstream_st* stream);

}  // namespace metroplex::kernels

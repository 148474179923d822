// Rows sorted by expert and back: where each assignment of a token to an expert goes, the rows that go there, and the
// sums of what comes back. Everything stays on the device: how many rows an expert gets is read by kernels alone.
#pragma once

#include <cstdint>

#include "cuda/kernels/half.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

// Assignments a = t k + j of tokens t to experts[a]. Those of the experts [first, first + num_experts) get rows:
// expert by expert, in the order of a inside one. Experts of a chunk of `chunk` neighbours lie together, and `copies`
// copies of a chunk behind each other. With `capacity` every expert has that many rows, the last of them padding.
struct PermutationShape {
  int64_t assignments = 0, num_rows = 0;  // num_rows: room for all rows that there may be
  int64_t first = 0, num_experts = 0, chunk = 0;
  int64_t copies = 1, capacity = 0;
};

// rows [assignments, copies]: the row of each copy, -1 for an assignment to no expert here. source [num_rows]: the
// assignment in each row, -1 for padding. counts [num_experts]: assignments of each expert.
struct PermutationPlan {
  int64_t *rows, *source, *counts;
};
void plan_permutation(const int64_t* experts, const PermutationPlan& plan, const PermutationShape& shape);

// Rows that came from several ranks, from each sorted by expert: where they go to be sorted by expert over all ranks.
// table [ranks, num_experts]: how many came. They lie rank by rank, expert by expert, each expert's from one rank in
// `capacity` rows where that is not 0. rows [num_in]: where each goes, -1: nowhere (padding). source [num_out]: which
// goes there, -1: padding. counts [num_experts].
struct RegroupShape {
  int64_t ranks = 0, num_experts = 0, capacity = 0;
  int64_t num_in = 0, num_out = 0;
};
void plan_regroup(const int64_t* table, const PermutationPlan& plan, const RegroupShape& shape);

// out [num_rows, width]: row r is row source[r] / divisor of x; padding stays as it is.
struct RowsShape {
  int64_t num_rows = 0, width = 0, divisor = 1;
};
template <class T>
void permute_rows(const T* x, const int64_t* source, T* out, const RowsShape& shape);

// out [tokens, width]: row t is the sum of the rows rows[t, 0], ..., rows[t, terms - 1] of x in this order, in the
// wide type; -1 is nothing.
struct SumShape {
  int64_t tokens = 0, terms = 0, width = 0;
};
template <class T>
void sum_rows(const T* x, const int64_t* rows, T* out, const SumShape& shape);

// The same on a GPU, enqueued on `stream`; all pointers are of the device. base::Error("cuda", ...) when nothing was
// launched.
void plan_permutation_cuda(const int64_t* experts, const PermutationPlan& plan, const PermutationShape& shape,
                           CUstream_st* stream);
void plan_regroup_cuda(const int64_t* table, const PermutationPlan& plan, const RegroupShape& shape,
                       CUstream_st* stream);
template <class T>
void permute_rows_cuda(const T* x, const int64_t* source, T* out, const RowsShape& shape, CUstream_st* stream);
template <class T>
void sum_rows_cuda(const T* x, const int64_t* rows, T* out, const SumShape& shape, CUstream_st* stream);

}  // namespace metroplex::cuda::kernels

// Rows of tokens sorted by expert, and back. All are differentiable, and none looks at a value on the host: padding,
// rows that no assignment has, is neither written nor read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cuda/launch_point.h"

namespace metroplex::moe {

struct Permutation {
  at::Tensor rows;      // [T, terms] int64: the rows that belong to each token; -1: none
  at::Tensor source;    // [R] int64: the assignment t k + j in each row (of regroup: the row before); -1: padding
  at::Tensor counts;    // [experts] int64: assignments of each
  int64_t divisor = 1;  // assignments of a token: k; of regroup 1
};

struct PermuteHow {
  int64_t first = 0, num_experts = 0;  // these get rows, the others none
  int64_t chunk = 0;                   // so many neighbours lie together; 0: all
  int64_t copies = 1;                  // of each chunk, behind each other
  int64_t capacity = 0;                // rows of every expert, the last of them padding; 0: as many as it has
  int64_t num_rows = 0;                // R
};
// experts [T, k] int64, no expert twice in a row. Sorted by expert; of one expert, by token.
Permutation permutation(const cuda::Target& target, const at::Tensor& experts, const PermuteHow& how);

// Rows that came from several ranks, from each sorted by expert, to be sorted by expert over all of them. table
// [ranks, experts] int64: how many came; each expert's from one rank lie in `capacity` rows where that is not 0.
struct RegroupHow {
  int64_t capacity = 0;
  int64_t num_in = 0, num_out = 0;
};
Permutation regroup(const cuda::Target& target, const at::Tensor& table, const RegroupHow& how);

// x [T, h] -> [R, h]: each row is that of its token; backward adds up what came of a token.
at::Tensor permute(const cuda::Target& target, const at::Tensor& x, const Permutation& p);
// y [R, h] -> [T, h]: the sum of a token's rows, in the order of its assignments.
at::Tensor unpermute(const cuda::Target& target, const at::Tensor& y, const Permutation& p);
// probs [T, k] -> [R]: that of the assignment in each row.
at::Tensor permute_probs(const cuda::Target& target, const at::Tensor& probs, const Permutation& p);

}  // namespace metroplex::moe

// Sorts token rows by expert and restores their order. All functions are differentiable and read no values on the
// host. Padding rows, which have no assignment, are neither written nor read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "device/launch_point.h"

namespace metroplex::moe {

struct Permutation {
  at::Tensor rows;      // [T, terms] int64: rows of each token; -1: none
  at::Tensor source;    // [R] int64: the assignment t k + j of each row (regroup: the input row); -1: padding
  at::Tensor counts;    // [experts] int64: assignments of each expert
  int64_t divisor = 1;  // assignments per token, k; 1 for regroup
};

struct PermuteHow {
  int64_t first = 0, num_experts = 0;  // these experts get rows, others none
  int64_t chunk = 0;                   // experts per chunk; 0: all
  int64_t copies = 1;                  // consecutive copies of each chunk
  int64_t capacity = 0;                // rows of every expert, padded at the end; 0: unpadded
  int64_t num_rows = 0;                // R
};
// experts [T, k] int64, no expert twice in a row. Sorts by expert, then by token.
Permutation permutation(const device::Target& target, const at::Tensor& experts, const PermuteHow& how);

// Sorts rows received from several ranks, each sorted by expert, by expert over all ranks. table [ranks, experts]
// int64: rows received. If `capacity` is not 0, rows of each expert from one rank are padded to `capacity`.
struct RegroupHow {
  int64_t capacity = 0;
  int64_t num_in = 0, num_out = 0;
};
Permutation regroup(const device::Target& target, const at::Tensor& table, const RegroupHow& how);

// x [T, h] -> [R, h]: copies each row's token; backward sums the gradients of a token's rows. probs [T, k] -> [R]:
// the probability of each row's assignment; may be undefined.
struct PermutedRows {
  at::Tensor x, probs;
};
PermutedRows permute(const device::Target& target, const at::Tensor& x, const at::Tensor& probs,
                     const Permutation& permutation);
// y [R, h] -> [T, h]: the sum of a token's rows, in the order of its assignments.
at::Tensor unpermute(const device::Target& target, const at::Tensor& y, const Permutation& permutation);

}  // namespace metroplex::moe

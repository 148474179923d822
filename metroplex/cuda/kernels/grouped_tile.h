// One block of one group's product on a CPU, by one thread: what the ways to multiply (grouped_choice.h) have in
// common. A block's result does not depend on who computes it or on what is computed beside it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/kernels/vector_math.h"

namespace metroplex::cuda::kernels {

// c [m, n] = a b or c += a b, with the sum over k. a is [m, k], or [k, m] when `a_by_k`; b is [k, n], or [n, k] when
// `b_by_n`.
struct GroupedProblem {
  const void *a = nullptr, *b = nullptr;
  void* c = nullptr;
  int64_t lda = 0, ldb = 0, ldc = 0, m = 0, n = 0, k = 0;
  bool a_by_k = false, b_by_n = false, adds = false;
  bool wide_c = false;  // c is in Wide<T>
};

struct GroupedBlock {
  int64_t m_begin = 0, m_end = 0, n_begin = 0, n_end = 0;
  int64_t m() const { return m_end - m_begin; }
  int64_t n() const { return n_end - n_begin; }
};

// How a product is cut into blocks; the scratch memory is the caller's, 64-byte aligned.
struct GroupedCut {
  int64_t m = 0, n = 0;
  int64_t scratch_bytes = 0;
};

// What a thread that computes blocks one after the other calls before and after; may be null.
using GroupedBlockProduct = void (*)(const GroupedProblem& problem, const GroupedBlock& block, char* scratch);
using GroupedHook = void (*)();

constexpr int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace metroplex::cuda::kernels

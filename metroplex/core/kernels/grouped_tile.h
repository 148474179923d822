// One block of one group's product on a CPU, computed by one thread: shared by the implementations in
// grouped_choice.h. A block's result does not depend on the thread or on other blocks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/vector_math.h"

namespace metroplex::kernels {

// c [m, n] = factor a b or c += factor a b, summed over k. a is [m, k], or [k, m] if `a_by_k`; b is [k, n], or [n, k]
// if `b_by_n`.
struct GroupedProblem {
  const void *a = nullptr, *b = nullptr;
  void* c = nullptr;
  int64_t lda = 0, ldb = 0, ldc = 0, m = 0, n = 0, k = 0;
  bool a_by_k = false, b_by_n = false, adds = false;
  bool wide_c = false;  // c is in Wide<T>
  float factor = 1;
};

struct GroupedBlock {
  int64_t m_begin = 0, m_end = 0, n_begin = 0, n_end = 0;
  int64_t m() const { return m_end - m_begin; }
  int64_t n() const { return n_end - n_begin; }
};

struct GroupedWork {
  GroupedProblem problem;
  GroupedBlock block;
};

// First element of the block's right operand; null without a block.
template <class T>
const T* first_of_right(const GroupedWork* work) {
  if (work == nullptr) return nullptr;
  const GroupedProblem& problem = work->problem;
  return static_cast<const T*>(problem.b) + work->block.n_begin * (problem.b_by_n ? problem.ldb : 1);
}

// Block size of a product, and the scratch memory per thread, which the caller provides 64-byte aligned.
struct GroupedCut {
  int64_t m = 0, n = 0;
  int64_t scratch_bytes = 0;
};

// Computes one block. `next`: the next block of the same thread and operation; may be null.
using GroupedBlockProduct = void (*)(const GroupedWork& work, const GroupedWork* next, char* scratch);
using GroupedHook = void (*)();

// Prefetches memory into the L2 cache a few lines at a time during a computation. The product of one panel leaves the
// memory bandwidth unused.
class Ahead {
 public:
  Ahead() = default;
  // Prefetches rows of `bytes` bytes in `steps` steps.
  Ahead(const void* from, int64_t rows, int64_t bytes, int64_t stride, int64_t steps)
      : at_(static_cast<const char*>(from)), bytes_(bytes), stride_(stride), left_(rows * ((bytes + 63) / 64)) {
    a_step_ = left_ / std::max<int64_t>(1, steps) + 1;
  }
  MPX_INLINE void step() {
    const int64_t count = std::min(a_step_, left_);
    left_ -= count;
    for (int64_t i = 0; i < count; ++i) {
      __builtin_prefetch(at_ + done_, 0, 2);
      done_ += 64;
      if (done_ >= bytes_) done_ = 0, at_ += stride_;
    }
  }

 private:
  const char* at_ = nullptr;
  int64_t bytes_ = 0, stride_ = 0, left_ = 0, done_ = 0, a_step_ = 0;
};

constexpr int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace metroplex::kernels

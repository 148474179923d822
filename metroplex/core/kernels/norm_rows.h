// The rows of a norm on the CPU, for kernels that process a row further while it is in the cache.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/column_sums.h"
#include "kernels/norm.h"
#include "kernels/wide_row.h"

namespace metroplex::kernels {

template <class In, class Out>
NormForward<In, Out, Wide<In>> widened(const NormForward<In, Out>& forward, const WideRow<Out>& weight,
                                       const WideRow<Out>& bias) {
  return {forward.x, weight.data(), bias.data(), forward.out, forward.mean, forward.rstd};
}
template <class In, class Out>
NormBackward<In, Out, Wide<In>> widened(const NormBackward<In, Out>& backward, const WideRow<Out>& weight) {
  return {backward.dy,  backward.x,  weight.data(),  backward.mean,      backward.rstd,
          backward.add, backward.dx, backward.lines, backward.with_bias, backward.with_dx};
}

// Process rows [begin, end) of norm_forward and norm_backward. The latter adds weight gradients to dweight and dbias
// [width].
#define MPX_ROWS(Out, In)                                                                                         \
  void norm_forward_rows(const NormForward<In, Out, Wide<In>>& forward, const NormShape& shape, int64_t begin,    \
                         int64_t end);                                                                            \
  void norm_backward_rows(const NormBackward<In, Out, Wide<In>>& backward, const NormShape& shape, int64_t begin, \
                          int64_t end, Wide<In>* dweight, Wide<In>* dbias)
MPX_FOR_ELEMENT_PAIRS(MPX_ROWS);
#undef MPX_ROWS

// Sums of dx for NormBackward::with_dx, with the bits of column_sums.
template <class In, class Out, class T>
void sum_dx(const NormBackward<In, Out>& backward, const T* dx, const NormShape& shape) {
  if (backward.with_dx)
    column_sums<T>(backward.lines + (backward.sums() - 1) * shape.width, dx, {shape.rows, shape.width, shape.width});
}

// Weight gradients of each block of rows, and their sum in block order.
template <class T>
class NormBlocks {
 public:
  NormBlocks(const NormShape& shape, bool with_bias)
      : rows_(shape.rows),
        width_(shape.width),
        count_((shape.rows + kRows - 1) / kRows),
        dweight_(static_cast<size_t>(count_ * width_)),
        dbias_(with_bias ? dweight_.size() : 0) {}

  int64_t count() const { return count_; }
  int64_t begin(int64_t block) const { return block * kRows; }
  int64_t end(int64_t block) const { return std::min(rows_, (block + 1) * kRows); }
  T* dweight(int64_t block) { return dweight_.data() + block * width_; }
  T* dbias(int64_t block) { return dbias_.empty() ? nullptr : dbias_.data() + block * width_; }
  // Writes one line, see NormBackward.
  void sum(T* line) const {
    sum(dweight_, line);
    if (!dbias_.empty()) sum(dbias_, line + width_);
  }

 private:
  static constexpr int64_t kRows = 32;

  void sum(const std::vector<T>& blocks, T* out) const {
    std::fill(out, out + width_, T(0));
    for (int64_t block = 0; block < count_; ++block) {
      const T* line = blocks.data() + block * width_;
      for (int64_t i = 0; i < width_; ++i) out[i] += line[i];
    }
  }

  int64_t rows_, width_, count_;
  std::vector<T> dweight_, dbias_;
};

}  // namespace metroplex::kernels

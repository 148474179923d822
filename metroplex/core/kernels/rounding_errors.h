// Measures what round_blocks does to an operand. CPU and CUDA add in the same order: element i of a group belongs to
// part i / kFigureThreads % kFigureParts, whose threads add every element they own, then one another in pairs.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/round_blocks.h"

namespace metroplex::kernels {

// Sums over elements, then maxima. Elements that are not finite, before or after the rounding, are only counted.
struct RoundingFigures {
  double elements = 0, nonfinite = 0;
  double saturated = 0;  // magnitudes above that of the factor; 0 if every block has a factor of its own values
  double flushed = 0;    // nonzero elements that became 0
  double squared_error = 0, squares = 0;  // of rounded - x, and of x
  double largest = 0;                     // magnitude
  double decode = 0;                      // factor of a whole group from codes to values; 0: blocks have the factors
};
constexpr int64_t kRoundingFigures = sizeof(RoundingFigures) / sizeof(double), kRoundingSums = kRoundingFigures - 2;

// x, rounded [rows, columns]: argument and result of round_blocks, with its `magnitudes`, `counts` and `shape`.
template <class T>
struct RoundedOperand {
  const T* x = nullptr;
  const Wide<T>* rounded = nullptr;
  const Wide<T>* magnitudes = nullptr;
  const int64_t* counts = nullptr;
  RoundShape shape = {};
};

// Adds the figures of all groups to `figures`.
template <class T>
void rounding_errors(RoundingFigures* figures, const RoundedOperand<T>& operand);

// GPU version; see round_blocks.h. `parts`: scratch for groups * kFigureParts figures.
constexpr int64_t kFigureParts = 128, kFigureThreads = 256;
template <class T>
void rounding_errors_cuda(RoundingFigures* figures, RoundingFigures* parts, const RoundedOperand<T>& operand,
                          CUstream_st* stream);

constexpr MPX_INLINE double larger_figure(double a, double b) { return b > a ? b : a; }

constexpr MPX_INLINE void add_figures(RoundingFigures& to, const RoundingFigures& from) {
  to.elements += from.elements;
  to.nonfinite += from.nonfinite;
  to.saturated += from.saturated;
  to.flushed += from.flushed;
  to.squared_error += from.squared_error;
  to.squares += from.squares;
  to.largest = larger_figure(to.largest, from.largest);
  to.decode = larger_figure(to.decode, from.decode);
}

// Returns the largest magnitude that the format represents after scaling.
template <class W>
constexpr MPX_INLINE W saturation_limit(const W* magnitude, const RoundShape& shape) {
  if (!shape.whole_groups()) return std::numeric_limits<W>::infinity();
  return is_positive_finite(*magnitude) ? *magnitude : static_cast<W>(small_form(shape.number).largest);
}

template <class W>
constexpr MPX_INLINE void add_element(RoundingFigures& to, W x, W rounded, W limit) {
  const W magnitude = x < 0 ? -x : x;
  const bool finite = x - x == 0 && rounded - rounded == 0;
  to.elements += 1;
  to.nonfinite += finite ? 0 : 1;
  if (!finite) return;
  const double exact = x, error = static_cast<double>(rounded) - exact;
  to.saturated += magnitude > limit ? 1 : 0;
  to.flushed += x != 0 && rounded == 0 ? 1 : 0;
  to.squared_error += error * error;
  to.squares += exact * exact;
  to.largest = larger_figure(to.largest, magnitude);
}

}  // namespace metroplex::kernels

// Measures what round_blocks does to an operand. CPU and CUDA add in the same order: block i of a group belongs to
// part i / kFigureThreads % kFigureParts, whose threads add the elements of their blocks, then one another in pairs.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/divided.h"
#include "kernels/round_blocks.h"

namespace metroplex::kernels {

// Sums over elements, then maxima. Elements that are not finite, before or after the rounding, are only counted.
struct RoundingFigures {
  double elements = 0, nonfinite = 0;
  double saturated = 0;  // magnitudes that the factor of their block maps to more than the largest code
  double flushed = 0;    // nonzero elements that became 0
  double squared_error = 0, squares = 0;  // of rounded - x, and of x
  double largest = 0;                     // magnitude
  double decode = 0;                      // factor of a whole group from codes to values; 0: only blocks have one
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

// Consecutive rows of a group, and its entry of RoundedOperand::magnitudes (0 if there are none).
template <class W>
struct FigureGroup {
  int64_t begin, end;
  W magnitude;
};

// A thread adds one block at a time; one element if blocks are whole groups.
struct FigureBlock {
  int64_t rows, columns;  // of a block
  int64_t across;         // blocks of a row

  constexpr explicit MPX_INLINE FigureBlock(const RoundShape& shape)
      : rows(shape.whole_groups() ? 1 : shape.block_rows),
        columns(shape.whole_groups() ? 1 : shape.column_step()),
        across(shape.whole_groups() ? shape.columns : shape.column_blocks()) {}
  constexpr MPX_INLINE int64_t count(int64_t group_rows) const { return (group_rows + rows - 1) / rows * across; }
};

// RoundingFigures::decode of a group that has rows. With BlockFactor::e4m3, codes are also multiplied by the e4m3
// factors of the blocks.
template <class W>
constexpr MPX_INLINE W group_decode(W magnitude, const RoundShape& shape) {
  if (shape.factor == BlockFactor::e4m3) return W(1) / group_factor(magnitude, shape.number);
  return shape.whole_groups() ? code_factors(magnitude, magnitude, shape.number, shape.factor).decode : W(0);
}

template <class W>
constexpr MPX_INLINE W element_magnitude(W x) {
  return x < 0 ? -x : x;
}

// `encode`: factor of the element's block. A block's largest magnitude times `encode` is off by at most five
// roundings of W, each by half an epsilon; they do not count as saturation.
template <class W>
constexpr MPX_INLINE void add_element(RoundingFigures& to, W x, W rounded, W encode, SmallNumber number) {
  constexpr W kRounding = 4 * std::numeric_limits<W>::epsilon();
  const W magnitude = element_magnitude(x), largest = static_cast<W>(small_form(number).largest);
  const bool finite = x - x == 0 && rounded - rounded == 0;
  to.elements += 1;
  to.nonfinite += finite ? 0 : 1;
  if (!finite) return;
  const double exact = x, error = static_cast<double>(rounded) - exact;
  to.saturated += magnitude * encode > largest * (1 + kRounding) ? 1 : 0;
  to.flushed += x != 0 && rounded == 0 ? 1 : 0;
  to.squared_error += error * error;
  to.squares += exact * exact;
  to.largest = larger_figure(to.largest, magnitude);
}

// Adds block `index` of a group.
template <class T>
constexpr MPX_INLINE void add_block(RoundingFigures& to, const RoundedOperand<T>& operand,
                                    const FigureGroup<Wide<T>>& group, int64_t index) {
  const RoundShape& shape = operand.shape;
  const FigureBlock block(shape);
  const Divided place = divided(index, block.across);
  const int64_t row = group.begin + place.quotient * block.rows, column = place.remainder * block.columns,
                rows = group.end - row < block.rows ? group.end - row : block.rows,
                columns = shape.columns - column < block.columns ? shape.columns - column : block.columns,
                first = row * shape.columns + column;
  Wide<T> largest = group.magnitude;
  if (!shape.whole_groups()) {
    largest = 0;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const Wide<T> magnitude = element_magnitude(load(operand.x[first + i * shape.columns + j]));
        largest = largest < magnitude ? magnitude : largest;
      }
    }
  }
  const Wide<T> encode = code_factors(largest, group.magnitude, shape.number, shape.factor).encode;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = first + i * shape.columns + j;
      add_element(to, load(operand.x[at]), operand.rounded[at], encode, shape.number);
    }
  }
}

}  // namespace metroplex::kernels

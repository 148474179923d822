// bias_dropout_add for the elements that share one Philox block: the work of one GPU thread. The code is
// constexpr, so the host can run it too (nvcc needs --expt-relaxed-constexpr).
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/philox.h"
#include "kernels/dropout.h"

namespace metroplex::kernels {

constexpr int64_t kPhiloxWords = 4;

template <class T>
struct DropoutFactor {
  uint32_t threshold = 0;  // compared with the top 24 bits
  T scale = 1;

  constexpr explicit DropoutFactor(double probability)
      : threshold(static_cast<uint32_t>(probability * 16777216.0)),
        scale(static_cast<T>(1.0 / (1.0 - probability))) {}
  // Factor of element i of a block, from the block's random words.
  constexpr T operator()(const base::PhiloxBlock& words, int64_t i) const {
    return (words[static_cast<size_t>(i)] >> 8) < threshold ? T(0) : scale;
  }
};

// Maximum number of Philox blocks that overlap a row. A row that starts inside a block needs one more. If `width` is
// a multiple of the block size, all rows start at a block boundary.
constexpr int64_t dropout_blocks_per_row(int64_t width) {
  return width % kPhiloxWords == 0 ? width / kPhiloxWords : (width + 2 * (kPhiloxWords - 1)) / kPhiloxWords;
}

// The elements of one Philox block. A whole block is moved in words of 8 or 16 bytes.
template <class T>
struct Quad {
  T values[kPhiloxWords];
};
__extension__ using Bits128 = unsigned __int128;
template <class T>
struct QuadWords {
  using Word __attribute__((may_alias)) = std::conditional_t<sizeof(Quad<T>) == 8, uint64_t, Bits128>;
  static constexpr size_t kCount = sizeof(Quad<T>) / sizeof(Word);
  Word words[kCount];
};

// Elements of a block that are inside the row.
struct QuadLanes {
  int64_t begin, end;
  bool whole;  // every block is fully inside, and word access is allowed
};

// Returns the valid lanes of from[at .. at + 3], and zero in other lanes.
template <class T>
constexpr Quad<T> load_quad(const T* from, int64_t at, const QuadLanes& lanes) {
  Quad<T> quad{};
  if (lanes.whole) {
    QuadWords<T> words{};
    for (size_t i = 0; i < words.kCount; ++i)
      words.words[i] = reinterpret_cast<const typename QuadWords<T>::Word*>(from + at)[i];
    quad = __builtin_bit_cast(Quad<T>, words);
  } else {
    for (int64_t lane = 0; lane < kPhiloxWords; ++lane) {
      if (lane >= lanes.begin && lane < lanes.end) quad.values[lane] = from[at + lane];
    }
  }
  return quad;
}
template <class T>
constexpr void store_quad(const Quad<T>& quad, T* to, int64_t at, const QuadLanes& lanes) {
  if (lanes.whole) {
    const auto words = __builtin_bit_cast(QuadWords<T>, quad);
    for (size_t i = 0; i < words.kCount; ++i)
      reinterpret_cast<typename QuadWords<T>::Word*>(to + at)[i] = words.words[i];
  } else {
    for (int64_t lane = 0; lane < kPhiloxWords; ++lane) {
      if (lane >= lanes.begin && lane < lanes.end) to[at + lane] = quad.values[lane];
    }
  }
}

template <class... Pointers>
constexpr bool aligned_for_quads(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % sizeof(typename QuadWords<Pointers>::Word) == 0) && ...);
}

// Processes work item `item` of num_rows * dropout_blocks_per_row(width).
template <class In, class Out>
constexpr void dropout_block(const DropoutOperands<In, Out>& operands, const DropoutShape& shape,
                             const DropoutFactor<Wide<In>>& factor, int64_t item) {
  using T = Wide<In>;
  const auto [row, block] = divided(item, dropout_blocks_per_row(shape.width));
  const bool draws = shape.probability > 0;
  const DropoutRow where = draws ? dropout_row(shape, row) : DropoutRow{};
  const int64_t first = block * kPhiloxWords - where.start % kPhiloxWords;  // may be negative
  if (first >= shape.width) return;
  base::PhiloxBlock bits{};
  if (draws) {
    bits = base::philox4x32(shape.key, static_cast<uint64_t>((where.start + first) / kPhiloxWords), where.counter);
  }
  const QuadLanes lanes{-first, shape.width - first,
                        shape.width % kPhiloxWords == 0 &&
                            aligned_for_quads(operands.x, operands.bias, operands.residual, operands.out)};
  const int64_t at = row * shape.width + first;
  const Quad<In> x = load_quad(operands.x, at, lanes);
  Quad<T> value{};
  for (int64_t lane = 0; lane < kPhiloxWords; ++lane) value.values[lane] = load(x.values[lane]);
  if (operands.bias != nullptr) {
    const Quad<In> bias = load_quad(operands.bias, first, lanes);
    for (int64_t lane = 0; lane < kPhiloxWords; ++lane) value.values[lane] += load(bias.values[lane]);
  }
  if (draws) {
    for (int64_t lane = 0; lane < kPhiloxWords; ++lane) value.values[lane] *= factor(bits, lane);
  }
  if (operands.residual != nullptr) {
    const Quad<Out> residual = load_quad(operands.residual, at, lanes);
    for (int64_t lane = 0; lane < kPhiloxWords; ++lane) value.values[lane] += load(residual.values[lane]);
  }
  Quad<Out> out{};
  for (int64_t lane = 0; lane < kPhiloxWords; ++lane) out.values[lane] = store<Out>(value.values[lane]);
  store_quad(out, operands.out, at, lanes);
}

}  // namespace metroplex::kernels

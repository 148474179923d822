#include "kernels/round_blocks.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/dropout_rows.h"
#include "kernels/expert_spans.h"
#include "kernels/small_codes.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {
namespace {

template <class W>
MPX_INLINE W larger(W a, W b) {
  const W magnitude = b < 0 ? -b : b;
  return a < magnitude ? magnitude : a;
}

template <class T>
MPX_INLINE Wide<T> row_maximum(const T* __restrict x, int64_t n, Wide<T> so_far) {
  constexpr int64_t kLanes = 16;
  Wide<T> lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = larger(lanes[lane], load(x[i + lane]));
  for (; i < n; ++i) lanes[0] = larger(lanes[0], load(x[i]));
  for (const Wide<T> lane : lanes) so_far = so_far < lane ? lane : so_far;
  return so_far;
}

// encode_row: codes of values with one factor. encode_columns: with one factor per column. Both stochastic with
// `noise`, if it is not null. maximum_of_row: the largest of n values and `so_far`. maxima_of_columns: of every
// column. scale_row: without rounding.
#define MPX_ROWS(replicas, T)                                                                                       \
  replicas void encode_row(uint8_t* __restrict codes, const T* __restrict x, Wide<T> encode, CodeForm form,         \
                           const Wide<T>* __restrict noise, int64_t n) {                                            \
    if (noise == nullptr) {                                                                                         \
      for (int64_t i = 0; i < n; ++i)                                                                               \
        codes[i] = small_code(static_cast<float>(round_small(load(x[i]) * encode, form.number)), form);             \
    } else {                                                                                                        \
      for (int64_t i = 0; i < n; ++i)                                                                               \
        codes[i] =                                                                                                  \
            small_code(static_cast<float>(round_small_randomly(load(x[i]) * encode, form.number, noise[i])), form); \
    }                                                                                                               \
  }                                                                                                                 \
  replicas void encode_columns(uint8_t* __restrict codes, const T* __restrict x, const Wide<T>* __restrict encode,  \
                               CodeForm form, const Wide<T>* __restrict noise, int64_t n) {                         \
    if (noise == nullptr) {                                                                                         \
      for (int64_t i = 0; i < n; ++i)                                                                               \
        codes[i] = small_code(static_cast<float>(round_small(load(x[i]) * encode[i], form.number)), form);          \
    } else {                                                                                                        \
      for (int64_t i = 0; i < n; ++i)                                                                               \
        codes[i] = small_code(                                                                                      \
            static_cast<float>(round_small_randomly(load(x[i]) * encode[i], form.number, noise[i])), form);         \
    }                                                                                                               \
  }                                                                                                                 \
  replicas Wide<T> maximum_of_row(const T* x, int64_t n, Wide<T> so_far) { return row_maximum(x, n, so_far); }      \
  replicas void maxima_of_columns(Wide<T>* __restrict maxima, const T* __restrict x, int64_t n) {                   \
    for (int64_t i = 0; i < n; ++i) maxima[i] = larger(maxima[i], load(x[i]));                                      \
  }                                                                                                                 \
  replicas void scale_row(Wide<T>* __restrict out, const T* __restrict x, Wide<T> factor, int64_t n) {              \
    for (int64_t i = 0; i < n; ++i) out[i] = load(x[i]) * factor;                                                   \
  }
MPX_ROWS(MPX_VECTOR_CLONES, float)
MPX_ROWS(MPX_HALF_CLONES, Bf16)
MPX_ROWS(MPX_HALF_CLONES, F16)
MPX_ROWS(, double)
#undef MPX_ROWS

// round_row: with one factor. round_columns: with one factor per column. Stochastic with `noise`, if it is not null.
#define MPX_ROUND(replicas, T, Out)                                                                               \
  replicas void round_row(Out* __restrict out, const T* __restrict x, CodeFactors<Wide<T>> by, SmallForm form,    \
                          const Wide<T>* __restrict noise, int64_t n) {                                           \
    if (noise == nullptr) {                                                                                       \
      for (int64_t i = 0; i < n; ++i) out[i] = store<Out>(round_small(load(x[i]) * by.encode, form) * by.decode); \
    } else {                                                                                                      \
      for (int64_t i = 0; i < n; ++i)                                                                             \
        out[i] = store<Out>(round_small_randomly(load(x[i]) * by.encode, form, noise[i]) * by.decode);            \
    }                                                                                                             \
  }                                                                                                               \
  replicas void round_columns(Out* __restrict out, const T* __restrict x, const Wide<T>* __restrict encode,       \
                              const Wide<T>* __restrict decode, SmallForm form, const Wide<T>* __restrict noise,  \
                              int64_t n) {                                                                        \
    if (noise == nullptr) {                                                                                       \
      for (int64_t i = 0; i < n; ++i) out[i] = store<Out>(round_small(load(x[i]) * encode[i], form) * decode[i]); \
    } else {                                                                                                      \
      for (int64_t i = 0; i < n; ++i)                                                                             \
        out[i] = store<Out>(round_small_randomly(load(x[i]) * encode[i], form, noise[i]) * decode[i]);            \
    }                                                                                                             \
  }
MPX_ROUND(MPX_VECTOR_CLONES, float, float)
MPX_ROUND(MPX_HALF_CLONES, Bf16, float)
MPX_ROUND(MPX_HALF_CLONES, Bf16, Bf16)
MPX_ROUND(MPX_HALF_CLONES, F16, float)
MPX_ROUND(, double, double)
#undef MPX_ROUND

// Replaces rows a and b by their sum and difference.
#define MPX_BUTTERFLY(replicas, W)                                       \
  replicas void butterfly(W* __restrict a, W* __restrict b, int64_t n) { \
    for (int64_t i = 0; i < n; ++i) {                                    \
      const W sum = a[i] + b[i], difference = a[i] - b[i];               \
      a[i] = sum, b[i] = difference;                                     \
    }                                                                    \
  }
MPX_BUTTERFLY(MPX_VECTOR_CLONES, float)
MPX_BUTTERFLY(, double)
#undef MPX_BUTTERFLY

// Writes the random numbers of columns [begin, end) of a row, which are adjacent in the unsharded row.
template <class W>
void fill_noise(W* out, const RoundingNoise& noise, const DropoutRow& row, int64_t begin, int64_t end,
                int64_t global) {
  const int64_t start = row.start + global;
  uint32_t bits[kDrawn];
  for (int64_t first = begin - start % 4; first < end; first += kDrawn) {
    philox_blocks(noise.positions.key, static_cast<uint64_t>((start + first - begin) / 4), row.counter, bits);
    for (int64_t i = std::max(begin, first); i < std::min(end, first + kDrawn); ++i)
      out[i] = unit_interval<W>(bits[i - first]);
  }
}

struct RowBlock {
  int64_t group, begin, end;
};

// All blocks of rows; those of a group are consecutive.
std::vector<RowBlock> row_blocks(const int64_t* counts, const RoundShape& shape, int64_t block_rows) {
  const std::vector<int64_t> equal(static_cast<size_t>(shape.groups), shape.rows / shape.groups),
      first = first_rows(counts != nullptr ? counts : equal.data(), {.experts = shape.groups, .rows = shape.rows});
  std::vector<RowBlock> blocks;
  for (int64_t group = 0; group < shape.groups; ++group) {
    int64_t begin = first[static_cast<size_t>(group)];
    const int64_t end = first[static_cast<size_t>(group) + 1];
    const int64_t step = block_rows > 0 ? block_rows : std::max<int64_t>(1, end - begin);
    for (; begin < end; begin = std::min(end, begin + step))
      blocks.push_back({group, begin, std::min(end, begin + step)});
  }
  return blocks;
}

template <class Body>
void for_blocks(const std::vector<RowBlock>& blocks, const RoundShape& shape, const Body& body) {
  if (blocks.empty() || shape.columns == 0) return;
  const int64_t values = std::max<int64_t>(1, (blocks.front().end - blocks.front().begin) * shape.columns);
  at::parallel_for(0, static_cast<int64_t>(blocks.size()), std::max<int64_t>(1, 16384 / values),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) body(blocks[static_cast<size_t>(i)]);
                   });
}

template <class T, class Out>
struct Blocks {
  using W = Wide<T>;
  Out* out;
  const T* x;
  const W* magnitudes;
  RoundShape shape;
  RoundingNoise noise;
  W* decode = nullptr;  // see round_blocks()

  // The random numbers of a row in `noise_row`; null: round to nearest.
  const W* row_noise(int64_t row, std::vector<W>& noise_row) const {
    if (!noise.active()) return nullptr;
    noise_row.resize(static_cast<size_t>(shape.columns));
    const DropoutRow at = dropout_row(noise.positions, row);
    for (int i = 0; i < noise.num_ranges; ++i) {
      const bool last = i + 1 == noise.num_ranges;
      fill_noise(noise_row.data(), noise, at, noise.ranges[i].local, last ? shape.columns : noise.ranges[i + 1].local,
                 noise.ranges[i].global);
    }
    return noise_row.data();
  }

  // encode, decode: one factor for each block of columns.
  void round_rows(const RowBlock& block, const std::vector<W>& encode, const std::vector<W>& decode) const {
    const SmallForm form = small_form(shape.number);
    const int64_t columns = shape.columns, step = shape.column_step();
    std::vector<W> noise_row;
    for (int64_t row = block.begin; row < block.end; ++row) {
      const W* const uniform = row_noise(row, noise_row);
      const T* const from = x + row * columns;
      Out* const to = out + row * columns;
      if (step == 1) {
        round_columns(to, from, encode.data(), decode.data(), form, uniform, columns);
        continue;
      }
      for (size_t block_index = 0; block_index < encode.size(); ++block_index) {
        const int64_t first = static_cast<int64_t>(block_index) * step;
        round_row(to + first, from + first, {encode[block_index], decode[block_index]}, form,
                  uniform == nullptr ? nullptr : uniform + first, std::min(step, columns - first));
      }
    }
  }

  std::vector<W> block_magnitudes(const RowBlock& block) const {
    const int64_t columns = shape.columns, step = shape.column_step();
    std::vector<W> maxima(static_cast<size_t>(shape.column_blocks()));
    for (int64_t row = block.begin; row < block.end; ++row) {
      const T* const from = x + row * columns;
      if (step == 1) {
        maxima_of_columns(maxima.data(), from, columns);
        continue;
      }
      for (size_t block_index = 0; block_index < maxima.size(); ++block_index) {
        const int64_t first = static_cast<int64_t>(block_index) * step;
        maxima[block_index] = maximum_of_row(from + first, std::min(step, columns - first), maxima[block_index]);
      }
    }
    return maxima;
  }

  struct Factors {
    std::vector<W> encode, decode;  // one for each block of columns
  };
  W group_magnitude(const RowBlock& block) const { return magnitudes != nullptr ? magnitudes[block.group] : W(0); }
  Factors factors(const RowBlock& block) const {
    return factors(block, shape.whole_groups() ? std::vector<W>{group_magnitude(block)} : block_magnitudes(block));
  }
  Factors factors(const RowBlock& block, std::vector<W> maxima) const {
    const W of_group = group_magnitude(block);
    Factors by{std::move(maxima), {}};
    by.decode.resize(by.encode.size());
    for (size_t block_index = 0; block_index < by.encode.size(); ++block_index) {
      const CodeFactors<W> both = code_factors(by.encode[block_index], of_group, shape.number, shape.factor);
      by.encode[block_index] = both.encode, by.decode[block_index] = both.decode;
    }
    return by;
  }

  void round(const RowBlock& block) const {
    Factors by = factors(block);
    if (decode != nullptr) by.decode = {W(1)};
    round_rows(block, by.encode, by.decode);
  }
  // Writes the factors of all groups, if blocks are whole groups.
  void write_factors(W* of_groups) const {
    for (int64_t group = 0; group < shape.groups; ++group)
      of_groups[group] = code_factors(magnitudes[group], magnitudes[group], shape.number, shape.factor).decode;
  }
  // The codes of a row, one in each byte. encode: one factor for each block of columns.
  void encode_blocks(uint8_t* codes, int64_t row, const std::vector<W>& encode, std::vector<W>& noise_row) const {
    const CodeForm form = code_form(shape.number);
    const int64_t columns = shape.columns, step = shape.column_step();
    const T* const from = x + row * columns;
    const W* const uniform = row_noise(row, noise_row);
    if (step == 1) return encode_columns(codes, from, encode.data(), form, uniform, columns);
    for (int64_t first = 0; first < columns; first += step)
      encode_row(codes + first, from + first, encode[static_cast<size_t>(first / step)], form,
                 uniform == nullptr ? nullptr : uniform + first, std::min(step, columns - first));
  }
  // Writes codes instead of values.
  void encode(const EncodedValues<W>& to, const RowBlock& block) const {
    const Factors by = factors(block);
    if (!shape.whole_groups()) std::copy(by.decode.begin(), by.decode.end(), to.decode + first_block(block));
    std::vector<W> noise_row;
    for (int64_t row = block.begin; row < block.end; ++row)
      encode_blocks(to.codes + row * shape.columns, row, by.encode, noise_row);
  }
  int64_t first_block(const RowBlock& block) const { return block.begin / shape.block_rows * shape.column_blocks(); }

  // Magnitudes of blocks, infinite for blocks with NaN.
  std::vector<W> magnitudes_or_infinity(const RowBlock& block) const {
    std::vector<W> maxima = block_magnitudes(block);
    for (int64_t row = block.begin; row < block.end; ++row) {
      for (int64_t column = 0; column < shape.columns; ++column) {
        const W value = load(x[row * shape.columns + column]);
        if (value != value)
          maxima[static_cast<size_t>(column / shape.column_step())] = std::numeric_limits<W>::infinity();
      }
    }
    return maxima;
  }
  // Writes pairs of E2M1 codes and E4M3 factors.
  void encode_pairs(const EncodedValues<W>& to, const RowBlock& block) const {
    const std::vector<W> maxima = magnitudes_or_infinity(block);
    const W group = group_factor(group_magnitude(block), shape.number);
    std::transform(maxima.begin(), maxima.end(), to.factors + first_block(block), [&](W magnitude) {
      return small_code(static_cast<float>(e4m3_factor(magnitude, group, shape.number)), e4m3_code());
    });
    const Factors by = factors(block, maxima);
    std::vector<W> noise_row;
    std::vector<uint8_t> codes(static_cast<size_t>(shape.columns));
    for (int64_t row = block.begin; row < block.end; ++row) {
      encode_blocks(codes.data(), row, by.encode, noise_row);
      uint8_t* const pairs = to.codes + row * shape.columns / 2;
      for (size_t pair = 0; pair < codes.size() / 2; ++pair)
        pairs[pair] = static_cast<uint8_t>(codes[2 * pair] | codes[2 * pair + 1] << 4);
    }
  }
};

}  // namespace

template <class T>
void largest_magnitudes(Wide<T>* magnitudes, const T* x, const int64_t* counts, const RoundShape& shape) {
  const std::vector<RowBlock> rows = row_blocks(counts, shape, 1);
  std::vector<Wide<T>> of_rows(static_cast<size_t>(shape.rows));
  for_blocks(rows, shape, [&](const RowBlock& row) {
    of_rows[static_cast<size_t>(row.begin)] = maximum_of_row(x + row.begin * shape.columns, shape.columns, 0);
  });
  std::fill_n(magnitudes, shape.groups, Wide<T>(0));
  for (const RowBlock& row : rows)
    magnitudes[row.group] = std::max(magnitudes[row.group], of_rows[static_cast<size_t>(row.begin)]);
}

template <class T, class Out>
void round_blocks(Out* out, const T* x, const Wide<T>* magnitudes, const int64_t* counts, const RoundShape& shape,
                  const RoundingNoise& noise, Wide<T>* decode) {
  const Blocks<T, Out> blocks{out, x, magnitudes, shape, noise, decode};
  if (decode != nullptr) blocks.write_factors(decode);
  // Rows of one group that share a factor are rounded independently.
  const int64_t block_rows = shape.whole_groups() ? 1 : shape.block_rows;
  for_blocks(row_blocks(counts, shape, block_rows), shape, [&](const RowBlock& block) { blocks.round(block); });
}

template <class T>
void encode_values(const EncodedValues<Wide<T>>& out, const T* x, const Wide<T>* magnitudes, const int64_t* counts,
                   const RoundShape& shape, const RoundingNoise& noise) {
  using W = Wide<T>;
  const Blocks<T, W> blocks{nullptr, x, magnitudes, shape, noise};
  const bool pairs = shape.number == SmallNumber::e2m1;
  if (pairs) *out.decode = W(1) / group_factor(*magnitudes, shape.number);
  if (shape.whole_groups()) blocks.write_factors(out.decode);
  const int64_t block_rows = shape.whole_groups() ? 1 : shape.block_rows;
  for_blocks(row_blocks(counts, shape, block_rows), shape, [&](const RowBlock& block) {
    if (pairs) blocks.encode_pairs(out, block);
    else blocks.encode(out, block);
  });
}

template <class T>
void rotate_rows(T* out, const T* x, const int64_t* counts, const RoundShape& shape) {
  const int64_t columns = shape.columns;
  for_blocks(row_blocks(counts, shape, kHadamardRows), shape, [&](const RowBlock& block) {
    const int64_t first = block.begin * columns, values = (block.end - block.begin) * columns;
    if (block.end - block.begin < kHadamardRows) {
      std::copy_n(x + first, values, out + first);
      return;
    }
    std::vector<Wide<T>> rows(static_cast<size_t>(values));
    for (int64_t row = 0; row < kHadamardRows; ++row)
      scale_row(rows.data() + row * columns, x + first + row * columns, hadamard_factor(row), columns);
    for (int64_t distance = 1; distance < kHadamardRows; distance *= 2)
      for (int64_t row = 0; row < kHadamardRows; ++row)
        if ((row & distance) == 0)
          butterfly(rows.data() + row * columns, rows.data() + (row + distance) * columns, columns);
    for (int64_t i = 0; i < values; ++i) out[first + i] = store<T>(rows[static_cast<size_t>(i)]);
  });
}

#define MPX_INSTANTIATE(T)                                                                                \
  template void largest_magnitudes<T>(Wide<T>*, const T*, const int64_t*, const RoundShape&);             \
  template void encode_values<T>(const EncodedValues<Wide<T>>&, const T*, const Wide<T>*, const int64_t*, \
                                 const RoundShape&, const RoundingNoise&);                                \
  template void rotate_rows<T>(T*, const T*, const int64_t*, const RoundShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);
#define MPX_INSTANTIATE_ROUND(T, Out)                                                                   \
  template void round_blocks<T, Out>(Out*, const T*, const Wide<T>*, const int64_t*, const RoundShape&, \
                                     const RoundingNoise&, Wide<T>*)
MPX_FOR_ROUNDINGS(MPX_INSTANTIATE_ROUND);

}  // namespace metroplex::kernels

#include "kernels/round_blocks.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/expert_spans.h"

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

// maximum_of_row: the largest of n values and `so_far`. maxima_of_columns: of every column. round_row: with one
// factor. round_columns: with one factor per column.
#define MPX_ROWS(replicas, T)                                                                                      \
  replicas Wide<T> maximum_of_row(const T* x, int64_t n, Wide<T> so_far) { return row_maximum(x, n, so_far); }     \
  replicas void maxima_of_columns(Wide<T>* __restrict maxima, const T* __restrict x, int64_t n) {                  \
    for (int64_t i = 0; i < n; ++i) maxima[i] = larger(maxima[i], load(x[i]));                                     \
  }                                                                                                                \
  replicas void round_row(Wide<T>* __restrict out, const T* __restrict x, CodeFactors<Wide<T>> by, SmallForm form, \
                          int64_t n) {                                                                             \
    for (int64_t i = 0; i < n; ++i) out[i] = round_small(load(x[i]) * by.encode, form) * by.decode;                \
  }                                                                                                                \
  replicas void round_columns(Wide<T>* __restrict out, const T* __restrict x, const Wide<T>* __restrict encode,    \
                              const Wide<T>* __restrict decode, SmallForm form, int64_t n) {                       \
    for (int64_t i = 0; i < n; ++i) out[i] = round_small(load(x[i]) * encode[i], form) * decode[i];                \
  }
MPX_ROWS(MPX_VECTOR_CLONES, float)
MPX_ROWS(MPX_HALF_CLONES, Bf16)
MPX_ROWS(MPX_HALF_CLONES, F16)
MPX_ROWS(, double)
#undef MPX_ROWS

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

template <class T>
struct Blocks {
  using W = Wide<T>;
  W* out;
  const T* x;
  const W* magnitudes;
  RoundShape shape;

  // encode, decode: one factor for each block of columns.
  void round_rows(const RowBlock& block, const std::vector<W>& encode, const std::vector<W>& decode) const {
    const SmallForm form = small_form(shape.number);
    const int64_t columns = shape.columns, step = shape.column_step();
    for (int64_t row = block.begin; row < block.end; ++row) {
      const T* const from = x + row * columns;
      W* const to = out + row * columns;
      if (step == 1) {
        round_columns(to, from, encode.data(), decode.data(), form, columns);
        continue;
      }
      for (size_t block_index = 0; block_index < encode.size(); ++block_index) {
        const int64_t first = static_cast<int64_t>(block_index) * step;
        round_row(to + first, from + first, {encode[block_index], decode[block_index]}, form,
                  std::min(step, columns - first));
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

  void round(const RowBlock& block) const {
    std::vector<W> encode = shape.whole_groups() ? std::vector<W>{magnitudes[block.group]} : block_magnitudes(block);
    std::vector<W> decode(encode.size());
    for (size_t block_index = 0; block_index < encode.size(); ++block_index) {
      const CodeFactors<W> factors = code_factors(encode[block_index], shape.number, shape.factor);
      encode[block_index] = factors.encode, decode[block_index] = factors.decode;
    }
    round_rows(block, encode, decode);
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

template <class T>
void round_blocks(Wide<T>* out, const T* x, const Wide<T>* magnitudes, const int64_t* counts,
                  const RoundShape& shape) {
  const Blocks<T> blocks{out, x, magnitudes, shape};
  // Rows of one group that share a factor are rounded independently.
  const int64_t block_rows = shape.whole_groups() ? 1 : shape.block_rows;
  for_blocks(row_blocks(counts, shape, block_rows), shape, [&](const RowBlock& block) { blocks.round(block); });
}

#define MPX_INSTANTIATE(T)                                                                    \
  template void largest_magnitudes<T>(Wide<T>*, const T*, const int64_t*, const RoundShape&); \
  template void round_blocks<T>(Wide<T>*, const T*, const Wide<T>*, const int64_t*, const RoundShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels

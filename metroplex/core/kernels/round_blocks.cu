#include <algorithm>

#include "base/philox.h"
#include "kernels/group_walk.h"
#include "kernels/launch.h"
#include "kernels/round_blocks.h"
#include "kernels/small_codes.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {
namespace {

template <class W>
__device__ W absolute(W x) {
  return x < 0 ? -x : x;
}

// Block (part, group): the largest magnitude in one of kMagnitudeParts parts of the group's values.
template <class T>
__global__ void __launch_bounds__(kThreads)
    parts_kernel(Wide<T>* parts, const T* x, const int64_t* counts, RoundShape shape) {
  GroupWalk rows{counts, shape.groups, shape.rows};
  while (rows.group < static_cast<int64_t>(blockIdx.y)) rows.next();
  Wide<T> largest = 0;
  const int64_t end = rows.end * shape.columns, stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = rows.begin * shape.columns + int64_t{blockIdx.x} * kThreads + threadIdx.x; i < end; i += stride)
    largest = Max{}(largest, absolute(load(x[i])));
  largest = block_reduce(largest, Max{});
  if (threadIdx.x == 0) parts[int64_t{blockIdx.y} * kMagnitudeParts + blockIdx.x] = largest;
}

template <class W>
__global__ void __launch_bounds__(kThreads) largest_part_kernel(W* magnitudes, const W* parts) {
  const W part = threadIdx.x < kMagnitudeParts ? parts[int64_t{blockIdx.x} * kMagnitudeParts + threadIdx.x] : W(0);
  const W largest = block_reduce(part, Max{});
  if (threadIdx.x == 0) magnitudes[blockIdx.x] = largest;
}

template <class W>
__device__ W random_value(const RoundingNoise& noise, int64_t row, int64_t column) {
  int range = noise.num_ranges - 1;
  while (noise.ranges[range].local > column) --range;
  const DropoutRow at = dropout_row(noise.positions, row);
  const int64_t index = at.start + noise.ranges[range].global + (column - noise.ranges[range].local);
  const base::PhiloxBlock bits = base::philox4x32(noise.positions.key, static_cast<uint64_t>(index / 4), at.counter);
  return unit_interval<W>(bits[static_cast<size_t>(index % 4)]);
}

template <class T, class Out>
struct Rounding {
  using W = Wide<T>;
  Out* out;
  const T* x;
  const W* magnitudes;
  const int64_t* counts;
  RoundShape shape;
  RoundingNoise noise;
  W* decode = nullptr;  // null: `out` receives decoded values

  __device__ GroupWalk groups() const { return {counts, shape.groups, shape.rows}; }
  // Factors of a block with the largest magnitude `largest`, which is not read if the blocks are whole groups.
  __device__ CodeFactors<W> factors(W largest, int64_t group) const {
    const W of_group = magnitudes != nullptr ? magnitudes[group] : W(0);
    return code_factors(shape.whole_groups() ? of_group : largest, of_group, shape.number, shape.factor);
  }
  __device__ W rounded_code(W value, const CodeFactors<W>& by, const SmallForm& form, int64_t row,
                            int64_t column) const {
    const W scaled = value * by.encode;
    return noise.active() ? round_small_randomly(scaled, form, random_value<W>(noise, row, column))
                          : round_small(scaled, form);
  }
  __device__ W rounded(W value, const CodeFactors<W>& by, const SmallForm& form, int64_t row, int64_t column) const {
    const W code = rounded_code(value, by, form, row, column);
    return decode != nullptr ? code : code * by.decode;
  }
  __device__ void write(W value, const CodeFactors<W>& by, const SmallForm& form, int64_t row, int64_t column) const {
    const int64_t at = row * shape.columns + column;
    if constexpr (std::is_same_v<Out, uint8_t>)
      out[at] = small_code(static_cast<float>(rounded_code(value, by, form, row, column)), code_form(shape.number));
    else out[at] = store<Out>(rounded(value, by, form, row, column));
  }
};

// Elements per thread and access: whole packs of both types.
template <class T, class Out>
constexpr int64_t kRoundPack = Pack<T>::kCount < Pack<Out>::kCount ? Pack<Out>::kCount : Pack<T>::kCount;

// For blocks of one row, and whole groups: a thread block rounds one row at a time. The lanes of a warp that share a
// block are adjacent.
template <class T, class Out>
__global__ void __launch_bounds__(kThreads) round_rows_kernel(Rounding<T, Out> all) {
  using W = Wide<T>;
  constexpr int64_t kCount = kRoundPack<T, Out>;
  const SmallForm form = small_form(all.shape.number);
  const int64_t packs = all.shape.columns / kCount;
  const auto lanes = static_cast<unsigned>(all.shape.whole_groups() ? 1 : all.shape.column_step() / kCount);
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t group = thread; all.decode != nullptr && group < all.shape.groups; group += gridDim.x * kThreads)
    all.decode[group] = all.factors(0, group).decode;
  GroupWalk walk = all.groups();
  for (int64_t row = blockIdx.x; walk.reaches(row); row += gridDim.x) {
    for (int64_t first = 0; first < packs; first += kThreads) {
      const int64_t column = (first + threadIdx.x) * kCount, at = row * all.shape.columns + column;
      const bool inside = column < all.shape.columns;
      Elements<T, kCount> x{};
      if (inside) x.read(all.x + at);
      W largest = 0;
      for (const W value : x.values) largest = Max{}(largest, absolute(value));
      const CodeFactors<W> by = all.factors(warp_reduce(largest, Max{}, lanes), walk.group);
      if (!inside) continue;
      Elements<Out, kCount> out;
      for (int64_t i = 0; i < kCount; ++i) out.values[i] = all.rounded(x.values[i], by, form, row, column + i);
      out.write(all.out + at);
    }
  }
}

// For blocks of one column: a thread rounds every n-th block, counted over all groups. Adjacent threads read adjacent
// columns.
template <class T, class Out>
__global__ void __launch_bounds__(kThreads) round_columns_kernel(Rounding<T, Out> all) {
  using W = Wide<T>;
  const SmallForm form = small_form(all.shape.number);
  const int64_t columns = all.shape.columns, block_rows = all.shape.block_rows;
  const int64_t threads = int64_t{gridDim.x} * kThreads, thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  int64_t first = 0;  // the group's first block
  for (GroupWalk walk = all.groups(); walk.next();) {
    const int64_t blocks = (walk.end - walk.begin + block_rows - 1) / block_rows * columns;
    for (int64_t block = (thread - first % threads + threads) % threads; block < blocks; block += threads) {
      const Divided where = divided(block, columns);
      const int64_t column = where.remainder, begin = walk.begin + where.quotient * block_rows,
                    end = begin + block_rows < walk.end ? begin + block_rows : walk.end;
      W largest = 0;
      for (int64_t row = begin; row < end; ++row)
        largest = Max{}(largest, absolute(load(all.x[row * columns + column])));
      const CodeFactors<W> by = all.factors(largest, walk.group);
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * columns + column;
        all.out[at] = store<Out>(all.rounded(load(all.x[at]), by, form, row, column));
      }
    }
    first += blocks;
  }
}

// Columns that a thread block of round_kernel takes at once.
__host__ __device__ int64_t column_step(const RoundShape& shape) {
  constexpr int64_t kLongRow = 4096;
  const int64_t step = shape.column_step();
  return shape.whole_groups() && step > kLongRow ? kLongRow : step;
}
__host__ __device__ int64_t count_across(const RoundShape& shape) {
  return (shape.columns + column_step(shape) - 1) / column_step(shape);
}

// A thread block rounds every gridDim.x-th block of values, counted over all groups. The number of blocks in a group
// depends on its rows.
template <class T, class Out>
__global__ void __launch_bounds__(kThreads) round_kernel(Rounding<T, Out> all) {
  using W = Wide<T>;
  const RoundShape& shape = all.shape;
  const SmallForm form = small_form(shape.number);
  const int64_t block_rows = shape.whole_groups() ? 1 : shape.block_rows, across = count_across(shape),
                step = column_step(shape);
  int64_t first = 0;  // the group's first block
  for (GroupWalk walk = all.groups(); walk.next();) {
    const int64_t begin = walk.begin, end = walk.end;
    if (all.decode != nullptr && shape.whole_groups() && blockIdx.x + threadIdx.x == 0)
      all.decode[walk.group] = all.factors(0, walk.group).decode;
    const int64_t blocks = (end - begin + block_rows - 1) / block_rows * across, grid = gridDim.x;
    // The first block of this group that belongs to this thread block.
    int64_t block = (int64_t{blockIdx.x} - first % grid + grid) % grid;
    for (; block < blocks; block += grid) {
      const int64_t row = begin + block / across * block_rows, column = block % across * step;
      const int64_t rows = end - row < block_rows ? end - row : block_rows,
                    columns = shape.columns - column < step ? shape.columns - column : step;
      W largest = 0;
      if (!shape.whole_groups()) {
        for (int64_t i = threadIdx.x; i < rows * columns; i += kThreads)
          largest = Max{}(largest, absolute(load(all.x[(row + i / columns) * shape.columns + column + i % columns])));
        largest = block_reduce(largest, Max{});
      }
      const CodeFactors<W> by = all.factors(largest, walk.group);
      if (all.decode != nullptr && threadIdx.x == 0 && !shape.whole_groups()) all.decode[block] = by.decode;
      for (int64_t i = threadIdx.x; i < rows * columns; i += kThreads) {
        const int64_t own_row = row + i / columns, own_column = column + i % columns;
        all.write(load(all.x[own_row * shape.columns + own_column]), by, form, own_row, own_column);
      }
    }
    first += blocks;
  }
}

// E2M1: a thread encodes two adjacent columns of one row of a tile, whose rows and columns are whole blocks.
constexpr int64_t kTileRows = 16, kTileColumns = 2 * (kThreads / kTileRows), kBlockPairs = 8;
__host__ __device__ int64_t tiles_across(const RoundShape& shape) {
  return (shape.columns + kTileColumns - 1) / kTileColumns;
}

// Magnitudes of a pair's blocks: `own` are those of the pair, 0 outside of the matrix. All threads must call it.
template <class W>
__device__ void pair_magnitudes(W* own, const RoundShape& shape) {
  __shared__ W rows[kTileRows][kTileColumns];
  if (shape.block_columns > 1) own[0] = own[1] = warp_reduce(Max{}(own[0], own[1]), Max{}, kBlockPairs);
  if (shape.block_rows == 1) return;
  const int64_t row = threadIdx.x / (kTileColumns / 2), column = threadIdx.x % (kTileColumns / 2) * 2;
  __syncthreads();  // waits until the values of the previous tile have been read
  for (int64_t i = 0; i < 2; ++i) rows[row][column + i] = own[i];
  __syncthreads();
  for (int64_t other = 0; other < kTileRows; ++other)
    for (int64_t i = 0; i < 2; ++i) own[i] = Max{}(own[i], rows[other][column + i]);
}

template <class T>
__global__ void __launch_bounds__(kThreads) encode_pairs_kernel(Rounding<T, uint8_t> all, EncodedValues<Wide<T>> to) {
  using W = Wide<T>;
  const RoundShape& shape = all.shape;
  const W group = group_factor(all.magnitudes[0], shape.number), infinity = static_cast<W>(__builtin_inff());
  if (blockIdx.x + threadIdx.x == 0) *to.decode = W(1) / group;
  GroupWalk walk = all.groups();
  walk.next();
  const int64_t across = tiles_across(shape), tiles = (walk.end + kTileRows - 1) / kTileRows * across;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t row = tile / across * kTileRows + threadIdx.x / (kTileColumns / 2),
                  column = tile % across * kTileColumns + threadIdx.x % (kTileColumns / 2) * 2;
    const bool inside = row < walk.end && column < shape.columns;
    W values[2] = {}, largest[2] = {};
    for (int64_t i = 0; inside && i < 2; ++i) {
      values[i] = load(all.x[row * shape.columns + column + i]);
      largest[i] = values[i] == values[i] ? absolute(values[i]) : infinity;
    }
    pair_magnitudes(largest, shape);
    if (!inside) continue;
    uint32_t pair = 0;
    for (int64_t i = 0; i < 2; ++i) {
      const W code =
          all.rounded_code(values[i], all.factors(largest[i], 0), small_form(shape.number), row, column + i);
      pair |= uint32_t{small_code(static_cast<float>(code), e2m1_code())} << 4 * i;
      if (row % shape.block_rows == 0 && (column + i) % shape.block_columns == 0)
        to.factors[row / shape.block_rows * shape.column_blocks() + (column + i) / shape.block_columns] =
            small_code(static_cast<float>(e4m3_factor(largest[i], group, shape.number)), e4m3_code());
    }
    to.codes[(row * shape.columns + column) / 2] = static_cast<uint8_t>(pair);
  }
}

// At least the number of blocks of all groups.
int64_t count_blocks(const RoundShape& shape) {
  const int64_t block_rows = shape.whole_groups() ? 1 : shape.block_rows;
  return (shape.rows / block_rows + shape.groups) * count_across(shape);
}

template <class T, class Out>
bool rounds_by_rows(const Rounding<T, Out>& all) {
  constexpr int64_t kCount = kRoundPack<T, Out>;
  const RoundShape& shape = all.shape;
  const int64_t step = shape.column_step(), lanes = step / kCount;
  const bool shared = shape.block_rows == 1 && step % kCount == 0 && lanes <= kWarp && (lanes & (lanes - 1)) == 0;
  return shape.columns % kCount == 0 && aligned_for_packs(all.x, all.out) && (shape.whole_groups() || shared);
}

// A thread rotates one column of every n-th block of 16 rows, counted over all groups.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rotate_kernel(T* out, const T* x, const int64_t* counts, RoundShape shape) {
  using W = Wide<T>;
  const int64_t threads = int64_t{gridDim.x} * kThreads, thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  int64_t first = 0;  // the group's first item
  for (GroupWalk walk{counts, shape.groups, shape.rows}; walk.next();) {
    const int64_t items = (walk.end - walk.begin + kHadamardRows - 1) / kHadamardRows * shape.columns;
    for (int64_t item = (thread - first % threads + threads) % threads; item < items; item += threads) {
      const int64_t begin = walk.begin + item / shape.columns * kHadamardRows, column = item % shape.columns;
      const int64_t rows = walk.end - begin < kHadamardRows ? walk.end - begin : kHadamardRows;
      const bool whole = rows == kHadamardRows;
      W values[kHadamardRows];
      for (int64_t row = 0; row < rows; ++row)
        values[row] = load(x[(begin + row) * shape.columns + column]) * (whole ? hadamard_factor(row) : 1.0F);
      for (int64_t distance = 1; whole && distance < kHadamardRows; distance *= 2) {
        for (int64_t row = 0; row < kHadamardRows; ++row) {
          if ((row & distance) != 0) continue;
          const W sum = values[row] + values[row + distance];
          values[row + distance] = values[row] - values[row + distance];
          values[row] = sum;
        }
      }
      for (int64_t row = 0; row < rows; ++row) out[(begin + row) * shape.columns + column] = store<T>(values[row]);
    }
    first += items;
  }
}

}  // namespace

template <class T>
void largest_magnitudes_cuda(Wide<T>* magnitudes, Wide<T>* parts, const T* x, const int64_t* counts,
                             const RoundShape& shape, CUstream_st* stream) {
  const auto groups = static_cast<unsigned>(shape.groups);
  if (groups == 0) return;
  launch_kernel("largest_magnitudes", parts_kernel<T>,
                Grid{dim3(static_cast<unsigned>(kMagnitudeParts), groups), kThreads, 0, stream}, parts, x, counts,
                shape);
  launch_kernel("largest_part", largest_part_kernel<Wide<T>>, Grid{groups, kThreads, 0, stream}, magnitudes,
                static_cast<const Wide<T>*>(parts));
}

template <class T, class Out>
void round_blocks_cuda(Out* out, const T* x, const Wide<T>* magnitudes, const int64_t* counts,
                       const RoundShape& shape, const RoundingNoise& noise, Wide<T>* decode, CUstream_st* stream) {
  if ((shape.rows == 0 || shape.columns == 0) && decode == nullptr) return;
  const Rounding<T, Out> all{out, x, magnitudes, counts, shape, noise, decode};
  const int64_t blocks = count_blocks(shape);
  const auto launch = [&](auto kernel, unsigned thread_blocks) {
    launch_kernel("round_blocks", kernel, Grid{std::max(1U, thread_blocks), kThreads, 0, stream}, all);
  };
  if (rounds_by_rows(all)) launch(round_rows_kernel<T, Out>, blocks_for_rows(shape.rows));
  else if (shape.block_columns == 1) launch(round_columns_kernel<T, Out>, blocks_for(blocks));
  else launch(round_kernel<T, Out>, blocks_for_rows(blocks));
}

template <class T>
void encode_values_cuda(const EncodedValues<Wide<T>>& out, const T* x, const Wide<T>* magnitudes,
                        const int64_t* counts, const RoundShape& shape, const RoundingNoise& noise,
                        CUstream_st* stream) {
  const Rounding<T, uint8_t> all{out.codes, x, magnitudes, counts, shape, noise, out.decode};
  if (shape.number == SmallNumber::e2m1) {
    const int64_t tiles = std::max<int64_t>(1, (shape.rows + kTileRows - 1) / kTileRows * tiles_across(shape));
    launch_kernel("encode_pairs", encode_pairs_kernel<T>, Grid{blocks_for_rows(tiles), kThreads, 0, stream}, all,
                  out);
    return;
  }
  const int64_t blocks = std::max<int64_t>(1, count_blocks(shape));  // the first writes the factors of whole groups
  launch_kernel("encode_values", round_kernel<T, uint8_t>, Grid{blocks_for_rows(blocks), kThreads, 0, stream}, all);
}

template <class T>
void rotate_rows_cuda(T* out, const T* x, const int64_t* counts, const RoundShape& shape, CUstream_st* stream) {
  const int64_t items = (shape.rows / kHadamardRows + shape.groups) * shape.columns;
  if (shape.rows == 0 || shape.columns == 0) return;
  launch_kernel("rotate_rows", rotate_kernel<T>, Grid{blocks_for(items), kThreads, 0, stream}, out, x, counts, shape);
}

#define MPX_INSTANTIATE(T)                                                                                     \
  template void largest_magnitudes_cuda<T>(Wide<T>*, Wide<T>*, const T*, const int64_t*, const RoundShape&,    \
                                           CUstream_st*);                                                      \
  template void encode_values_cuda<T>(const EncodedValues<Wide<T>>&, const T*, const Wide<T>*, const int64_t*, \
                                      const RoundShape&, const RoundingNoise&, CUstream_st*);                  \
  template void rotate_rows_cuda<T>(T*, const T*, const int64_t*, const RoundShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);
#define MPX_INSTANTIATE_ROUND(T, Out)                                                                        \
  template void round_blocks_cuda<T, Out>(Out*, const T*, const Wide<T>*, const int64_t*, const RoundShape&, \
                                          const RoundingNoise&, Wide<T>*, CUstream_st*)
MPX_FOR_ROUNDINGS(MPX_INSTANTIATE_ROUND);

}  // namespace metroplex::kernels

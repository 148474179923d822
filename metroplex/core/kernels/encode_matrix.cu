#include "kernels/encode_matrix.h"

#include <algorithm>

#include "kernels/launch.h"
#include "kernels/small_codes.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {
namespace {

// A thread block encodes a tile of kTile x kTile values, 64 of them in each thread: kPer adjacent columns of every
// kStep-th row.
constexpr int64_t kTile = 128;
template <class T>
constexpr int64_t kPer = sizeof(T) == 2 ? 8 : 4;
template <class T>
constexpr int64_t kLanes = kTile / kPer<T>;  // of a row; at most a warp
template <class T>
constexpr int64_t kStep = kThreads / kLanes<T>;
template <class T>
constexpr int64_t kPasses = kTile / kStep<T>;

template <class T>
struct Encoding {
  EncodedMatrix<Wide<T>> out;
  Wide<T>* parts;
  const T* x;
  const Wide<T>* magnitude;
  MatrixShape shape;
  bool packs;  // rows and arrays are aligned for accesses of kPer values
  bool words;  // transposed rows are aligned for accesses of 4 codes

  __device__ CodeFactors<Wide<T>> factors(Wide<T> largest) const {
    return code_factors(largest, Wide<T>(0), shape.number, shape.factor);
  }
  __device__ uint8_t code(Wide<T> value, Wide<T> encode) const {
    const CodeForm form = code_form(shape.number);
    return small_code(static_cast<float>(round_small(value * encode, form.number)), form);
  }
};

template <class W>
__device__ W absolute(W x) {
  return x < 0 ? -x : x;
}

// The values of a thread; 0 outside of the matrix.
template <class T>
struct Values {
  Wide<T> at[kPasses<T>][kPer<T>];

  __device__ void read(const Encoding<T>& all, int64_t first_row, int64_t column) {
    const int64_t rows = all.shape.rows, columns = all.shape.columns;
    for (int64_t pass = 0; pass < kPasses<T>; ++pass) {
      const int64_t row = first_row + pass * kStep<T>;
      const bool whole = all.packs && row < rows && column < columns;
      Elements<T, kPer<T>> x{};
      if (whole) x.read(all.x + row * columns + column);
      for (int64_t i = 0; i < kPer<T>; ++i) {
        const bool inside = !all.packs && row < rows && column + i < columns;
        at[pass][i] = inside ? load(all.x[row * columns + column + i]) : x.values[i];
      }
    }
  }
  __device__ Wide<T> largest(int64_t pass) const {
    Wide<T> most = 0;
    for (int64_t i = 0; i < kPer<T>; ++i) most = Max{}(most, absolute(at[pass][i]));
    return most;
  }
};

// Where a thread begins in a tile.
template <class T>
__device__ int64_t own_row() {
  return threadIdx.x / kLanes<T>;
}
template <class T>
__device__ int64_t own_column() {
  return threadIdx.x % kLanes<T> * kPer<T>;
}

// Factors of blocks of one column: writes encode[block][column] and the matrix's transposed_decode. All threads call
// it.
template <class T>
__device__ void find_column_factors(const Encoding<T>& all, const Values<T>& values, int64_t first_row,
                                    int64_t first_column, Wide<T> (*encode)[kTile]) {
  using W = Wide<T>;
  __shared__ W parts[kStep<T>][kTile];
  const int64_t block = all.shape.block, blocks = (all.shape.rows + block - 1) / block, lane = threadIdx.x;
  W largest[kPer<T>] = {};
#pragma unroll
  for (int64_t pass = 0; pass < kPasses<T>; ++pass) {
    for (int64_t i = 0; i < kPer<T>; ++i) largest[i] = Max{}(largest[i], absolute(values.at[pass][i]));
    const int64_t end = (pass + 1) * kStep<T>, row = first_row + end - block;
    if (end % block != 0) continue;
    __syncthreads();  // waits until the parts of the previous block have been read
    for (int64_t i = 0; i < kPer<T>; ++i) {
      parts[own_row<T>()][own_column<T>() + i] = largest[i];
      largest[i] = 0;
    }
    __syncthreads();
    if (lane >= kTile) continue;
    W most = 0;
    for (int64_t part = 0; part < kStep<T>; ++part) most = Max{}(most, parts[part][lane]);
    const CodeFactors<W> by = all.factors(most);
    encode[end / block - 1][lane] = by.encode;
    if (row < all.shape.rows && first_column + lane < all.shape.columns)
      all.out.transposed_decode[(first_column + lane) * blocks + row / block] = by.decode;
  }
  __syncthreads();
}

// The factor of a thread's values of one row. All threads call it.
template <class T>
__device__ Wide<T> find_row_factor(const Encoding<T>& all, Wide<T> largest, int64_t row, int64_t column) {
  const int64_t block = all.shape.block, blocks = (all.shape.columns + block - 1) / block;
  const CodeFactors<Wide<T>> by = all.factors(warp_reduce(largest, Max{}, static_cast<unsigned>(block / kPer<T>)));
  const bool inside = row < all.shape.rows && column < all.shape.columns;
  if (inside && column % block == 0 && all.out.decode != nullptr)
    all.out.decode[row * blocks + column / block] = by.decode;
  return by.encode;
}

template <class T>
__device__ void write_codes(const Encoding<T>& all, const uint8_t* codes, int64_t row, int64_t column) {
  if (all.out.decode == nullptr || row >= all.shape.rows || column >= all.shape.columns) return;
  uint8_t* const to = all.out.codes + row * all.shape.columns + column;
  if (!all.packs) {
    for (int64_t i = 0; i < kPer<T> && column + i < all.shape.columns; ++i) to[i] = codes[i];
    return;
  }
  using Word = std::conditional_t<kPer<T> == 8, uint64_t, uint32_t>;
  Word word = 0;
  for (int64_t i = 0; i < kPer<T>; ++i) word |= Word{codes[i]} << (8 * i);
  *reinterpret_cast<Word*>(to) = word;
}

// Codes of a tile by column. Columns are longer than the tile against bank conflicts.
constexpr int64_t kWordCodes = 4, kTileStride = kTile + kWordCodes;

// Copies kWordCodes codes from `at` on of a row of `length`, in one access if rows are aligned (`words`).
__device__ void read_word(uint8_t* codes, const uint8_t* row, int64_t at, int64_t length, bool words) {
  if (words && at < length) {
    const uint32_t word = *reinterpret_cast<const uint32_t*>(row + at);
    for (int64_t i = 0; i < kWordCodes; ++i) codes[i] = static_cast<uint8_t>(word >> (8 * i));
    return;
  }
  for (int64_t i = 0; i < kWordCodes && at + i < length; ++i) codes[i] = row[at + i];
}
__device__ void write_word(uint8_t* row, const uint8_t* codes, int64_t at, int64_t length, bool words) {
  if (words && at < length) {
    uint32_t word = 0;
    for (int64_t i = 0; i < kWordCodes; ++i) word |= uint32_t{codes[i]} << (8 * i);
    *reinterpret_cast<uint32_t*>(row + at) = word;
    return;
  }
  for (int64_t i = 0; i < kWordCodes && at + i < length; ++i) row[at + i] = codes[i];
}

template <class T>
__device__ void write_transposed(const Encoding<T>& all, const uint8_t* tile, int64_t first_row,
                                 int64_t first_column) {
  const int64_t rows = all.shape.rows, lane = threadIdx.x % kWarp * kWordCodes;
  for (int64_t column = threadIdx.x / kWarp; column < kTile; column += kWarps) {
    if (first_column + column >= all.shape.columns) continue;
    write_word(all.out.transposed + (first_column + column) * rows, tile + column * kTileStride + lane,
               first_row + lane, rows, all.words);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) encode_matrix_kernel(Encoding<T> all) {
  using W = Wide<T>;
  constexpr int64_t kLeastBlock = 16;
  __shared__ W column_encode[kTile / kLeastBlock][kTile];
  __shared__ uint8_t tile_codes[kTile * kTileStride];
  const MatrixShape& shape = all.shape;
  const bool turns = all.out.transposed_decode != nullptr, whole = shape.block == 0;
  CodeFactors<W> by{};
  if (whole) by = all.factors(*all.magnitude);
  if (whole && blockIdx.x + threadIdx.x == 0) {
    if (all.out.decode != nullptr) *all.out.decode = by.decode;
    if (all.out.transposed_decode != nullptr) *all.out.transposed_decode = by.decode;
  }
  const int64_t across = (shape.columns + kTile - 1) / kTile, down = (shape.rows + kTile - 1) / kTile;
  W largest = 0;
  for (int64_t tile = blockIdx.x; tile < across * down; tile += gridDim.x) {
    const int64_t first_row = tile / across * kTile, first_column = tile % across * kTile,
                  column = first_column + own_column<T>();
    Values<T> values;
    values.read(all, first_row + own_row<T>(), column);
    W of_tile = 0;
    for (int64_t pass = 0; pass < kPasses<T>; ++pass) of_tile = Max{}(of_tile, values.largest(pass));
    largest = Max{}(largest, of_tile);
    if (shape.square) {
      by = all.factors(block_reduce(of_tile, Max{}));
      if (threadIdx.x == 0 && all.out.decode != nullptr) all.out.decode[tile] = by.decode;
      if (threadIdx.x == 0 && turns) all.out.transposed_decode[tile % across * down + tile / across] = by.decode;
    }
    if (turns && !shape.shares_codes()) find_column_factors(all, values, first_row, first_column, column_encode);
#pragma unroll
    for (int64_t pass = 0; pass < kPasses<T>; ++pass) {
      const int64_t own = own_row<T>() + pass * kStep<T>, row = first_row + own;
      if (!shape.shares_codes()) by.encode = find_row_factor(all, values.largest(pass), row, column);
      uint8_t codes[kPer<T>];
      for (int64_t i = 0; i < kPer<T>; ++i) codes[i] = all.code(values.at[pass][i], by.encode);
      write_codes(all, codes, row, column);
      for (int64_t i = 0; turns && i < kPer<T>; ++i) {
        const int64_t at = own_column<T>() + i;
        tile_codes[at * kTileStride + own] =
            shape.shares_codes() ? codes[i] : all.code(values.at[pass][i], column_encode[own / shape.block][at]);
      }
    }
    if (!turns) continue;
    __syncthreads();
    write_transposed(all, tile_codes, first_row, first_column);
    __syncthreads();
  }
  largest = block_reduce(largest, Max{});
  if (threadIdx.x == 0 && all.parts != nullptr) all.parts[blockIdx.x] = largest;
}

// A thread block transposes every gridDim.x-th tile.
__global__ void __launch_bounds__(kThreads)
    transpose_bytes_kernel(uint8_t* to, const uint8_t* from, int64_t rows, int64_t columns, bool words) {
  __shared__ uint8_t codes[kTile][kTileStride];
  const int64_t across = (columns + kTile - 1) / kTile, tiles = (rows + kTile - 1) / kTile * across;
  const int64_t lane = threadIdx.x % kWarp * kWordCodes, first = threadIdx.x / kWarp;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t first_row = tile / across * kTile, first_column = tile % across * kTile;
    for (int64_t row = first; row < kTile && first_row + row < rows; row += kWarps)
      read_word(codes[row] + lane, from + (first_row + row) * columns, first_column + lane, columns, words);
    __syncthreads();
    for (int64_t column = first; column < kTile && first_column + column < columns; column += kWarps) {
      uint8_t word[kWordCodes];
      for (int64_t i = 0; i < kWordCodes && first_row + lane + i < rows; ++i) word[i] = codes[lane + i][column];
      write_word(to + (first_column + column) * rows, word, first_row + lane, rows, words);
    }
    __syncthreads();
  }
}

// A thread writes the pair of two rows of one column.
__global__ void __launch_bounds__(kThreads)
    transpose_pairs_kernel(uint8_t* to, const uint8_t* from, int64_t rows, int64_t columns) {
  constexpr int64_t kPairs = kTile / 2;
  __shared__ uint8_t pairs[kTile][kPairs + 1];
  const int64_t across = (columns + kTile - 1) / kTile, tiles = (rows + kTile - 1) / kTile * across;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t first_row = tile / across * kTile, first_column = tile % across * kTile;
    for (int64_t i = threadIdx.x; i < kTile * kPairs; i += kThreads) {
      const int64_t row = first_row + i / kPairs, column = first_column + i % kPairs * 2;
      if (row < rows && column < columns) pairs[i / kPairs][i % kPairs] = from[(row * columns + column) / 2];
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < kTile * kPairs; i += kThreads) {
      const int64_t own = i % kPairs * 2, row = first_row + own, column = first_column + i / kPairs;
      if (row >= rows || column >= columns) continue;
      const int64_t at = i / kPairs / 2, shift = i / kPairs % 2 * 4;
      to[(column * rows + row) / 2] =
          static_cast<uint8_t>((pairs[own][at] >> shift & 15) | (pairs[own + 1][at] >> shift & 15) << 4);
    }
    __syncthreads();
  }
}

template <class W>
__global__ void __launch_bounds__(kThreads) update_largest_kernel(W* largest, const W* parts, int64_t count) {
  W own = *largest;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) own = Max{}(own, parts[i]);
  own = block_reduce(own, Max{});
  if (threadIdx.x == 0) *largest = own;
}

}  // namespace

template <class T>
void encode_matrix_cuda(const EncodedMatrix<Wide<T>>& out, Wide<T>* parts, const T* x, const Wide<T>* magnitude,
                        const MatrixShape& shape, CUstream_st* stream) {
  const bool packs = shape.columns % kPer<T> == 0 && aligned_for_packs(x, out.codes),
             words = shape.rows % kWordCodes == 0 && aligned_for_packs(out.transposed);
  const int64_t tiles = (shape.rows + kTile - 1) / kTile * ((shape.columns + kTile - 1) / kTile);
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(tiles, 1, kEncodeBlocks));
  Wide<T>* const of_blocks = out.largest != nullptr ? parts : nullptr;
  launch_kernel("encode_matrix", encode_matrix_kernel<T>, Grid{blocks, kThreads, 0, stream},
                Encoding<T>{out, of_blocks, x, magnitude, shape, packs, words});
  if (out.largest == nullptr) return;
  launch_kernel("update_largest", update_largest_kernel<Wide<T>>, Grid{1, kThreads, 0, stream}, out.largest,
                static_cast<const Wide<T>*>(parts), int64_t{blocks});
}

void transpose_codes_cuda(uint8_t* to, const uint8_t* from, int64_t rows, int64_t columns, bool pairs,
                          CUstream_st* stream) {
  if (rows == 0 || columns == 0) return;
  const int64_t tiles = (rows + kTile - 1) / kTile * ((columns + kTile - 1) / kTile);
  const bool words = columns % kWordCodes == 0 && rows % kWordCodes == 0 && aligned_for_packs(to, from);
  const Grid grid{blocks_for_rows(tiles), kThreads, 0, stream};
  if (pairs) launch_kernel("transpose_codes", transpose_pairs_kernel, grid, to, from, rows, columns);
  else launch_kernel("transpose_codes", transpose_bytes_kernel, grid, to, from, rows, columns, words);
}

#define MPX_INSTANTIATE(T)                                                                               \
  template void encode_matrix_cuda<T>(const EncodedMatrix<Wide<T>>&, Wide<T>*, const T*, const Wide<T>*, \
                                      const MatrixShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels

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

// Codes of a tile by column, with room between columns against bank conflicts.
constexpr int64_t kWordCodes = 4, kTileStride = kTile + kWordCodes;

template <class T>
__device__ void write_transposed(const Encoding<T>& all, const uint8_t* tile, int64_t first_row,
                                 int64_t first_column) {
  const int64_t rows = all.shape.rows, lane = threadIdx.x % kWarp * kWordCodes, row = first_row + lane;
  for (int64_t column = threadIdx.x / kWarp; column < kTile; column += kWarps) {
    if (first_column + column >= all.shape.columns || row >= rows) continue;
    const uint8_t* const from = tile + column * kTileStride + lane;
    uint8_t* const to = all.out.transposed + (first_column + column) * rows + row;
    if (all.words) *reinterpret_cast<uint32_t*>(to) = *reinterpret_cast<const uint32_t*>(from);
    else
      for (int64_t i = 0; i < kWordCodes && row + i < rows; ++i) to[i] = from[i];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) encode_matrix_kernel(Encoding<T> all) {
  using W = Wide<T>;
  constexpr int64_t kLeastBlock = 16;
  __shared__ W column_encode[kTile / kLeastBlock][kTile];
  __shared__ uint32_t tile_words[kTile * kTileStride / kWordCodes];
  auto* const tile_codes = reinterpret_cast<uint8_t*>(tile_words);
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

#define MPX_INSTANTIATE(T)                                                                               \
  template void encode_matrix_cuda<T>(const EncodedMatrix<Wide<T>>&, Wide<T>*, const T*, const Wide<T>*, \
                                      const MatrixShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels

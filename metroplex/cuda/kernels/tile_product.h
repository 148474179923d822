// For .cu files: products of tiles in shared memory. A tile is cut into pieces of kSide x kSide sums, and a worker
// holds some of them: a thread, whose pieces are single sums, or a warp, whose pieces are those of the tensor cores.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include <type_traits>

#include "cuda/kernels/half.h"
#include "cuda/kernels/launch.h"

namespace metroplex::cuda::kernels {

template <class T>
using Native = std::conditional_t<std::is_same_v<T, Bf16>, __nv_bfloat16, __half>;

// Element (i, j) is data[i * leading + j], or data[j * leading + i] where `turned`.
template <class S, bool turned = false>
struct Factor {
  static constexpr bool kTurned = turned;
  const S* data;
  int leading;
  __device__ const S* at(int i, int j) const { return data + (turned ? j * leading + i : i * leading + j); }
};

template <class S>
__device__ Factor<S> rows(const S* data, int leading) {
  return {data, leading};
}
template <class S>
__device__ Factor<S, true> turned(const S* data, int leading) {
  return {data, leading};
}

template <class T>
struct ByThread {
  using W = Wide<T>;
  using Stored = W;  // what factors are in
  using Sum = W;
  static constexpr int kSide = 1, kWorkers = kThreads, kPieces = 16, kPad = 1, kPatches = 0;
  static constexpr bool kPacks = false;

  __device__ static int worker() { return static_cast<int>(threadIdx.x); }
  __device__ static void clear(Sum& sum) { sum = W(0); }
  // Adds to the piece that begins at (i, j).
  template <class A, class B>
  __device__ static void multiply(Sum& sum, const A& a, const B& b, int i, int j, int depth) {
    for (int k = 0; k < depth; ++k) sum += *a.at(i, k) * *b.at(k, j);
  }
  __device__ static void put(const Sum& sum, W* to, int) { *to = sum; }
  // body(row, column, sum) for every sum of the piece; what it changes stays so.
  template <class Body>
  __device__ static void each(Sum& sum, W*, const Body& body) {
    body(0, 0, sum);
  }
  // Rows by by[0], by[1], ...
  __device__ static void scale(Sum& sum, const W* by, W*) { sum *= by[0]; }
};

// Pointers and rows of factors and results begin at multiples of 32 and 16 bytes.
template <class T>
struct ByWarp {
  using W = float;
  using Stored = T;
  static constexpr int kSide = 16, kWorkers = kWarps, kPieces = 4, kPad = 8;
  // Single sums are reached in shared memory [kPatches].
  static constexpr int kPatch = kSide * kSide, kPatches = kPatch * static_cast<int>(kWarps);
  static constexpr bool kPacks = true;
  using Sum = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, kSide, kSide, kSide, W>;
  template <class Use, bool turned>
  using Part = nvcuda::wmma::fragment<Use, kSide, kSide, kSide, Native<T>,
                                      std::conditional_t<turned, nvcuda::wmma::col_major, nvcuda::wmma::row_major>>;

  __device__ static int worker() { return static_cast<int>(threadIdx.x / kWarp); }
  __device__ static void clear(Sum& sum) { nvcuda::wmma::fill_fragment(sum, 0.0F); }
  template <class A, class B>
  __device__ static void multiply(Sum& sum, const A& a, const B& b, int i, int j, int depth) {
    for (int k = 0; k < depth; k += kSide) {
      Part<nvcuda::wmma::matrix_a, A::kTurned> left;
      Part<nvcuda::wmma::matrix_b, B::kTurned> right;
      nvcuda::wmma::load_matrix_sync(left, reinterpret_cast<const Native<T>*>(a.at(i, k)), a.leading);
      nvcuda::wmma::load_matrix_sync(right, reinterpret_cast<const Native<T>*>(b.at(k, j)), b.leading);
      nvcuda::wmma::mma_sync(sum, left, right, sum);
    }
  }
  __device__ static void put(const Sum& sum, W* to, int leading) {
    nvcuda::wmma::store_matrix_sync(to, sum, leading, nvcuda::wmma::mem_row_major);
  }
  template <class Body>
  __device__ static void each(Sum& sum, W* patches, const Body& body) {
    W* const patch = patches + worker() * kPatch;
    __syncwarp();  // what was here before has been read
    put(sum, patch, kSide);
    __syncwarp();
    for (int e = static_cast<int>(threadIdx.x % kWarp); e < kPatch; e += static_cast<int>(kWarp))
      body(e / kSide, e % kSide, patch[e]);
    __syncwarp();
    nvcuda::wmma::load_matrix_sync(sum, patch, kSide, nvcuda::wmma::mem_row_major);
  }
  __device__ static void scale(Sum& sum, const W* by, W* patches) {
    if (__ballot_sync(kAll, by[threadIdx.x % kSide] != W(1)) == 0) return;
    each(sum, patches, [by](int row, int, W& value) { value *= by[row]; });
  }
};

// A product [rows, columns] into `to`.
template <class Unit, class A, class B>
__device__ void multiply_tile(const A& a, const B& b, int rows, int columns, int depth, typename Unit::W* to,
                              int leading) {
  const int across = columns / Unit::kSide, pieces = rows / Unit::kSide * across;
  for (int piece = Unit::worker(); piece < pieces; piece += Unit::kWorkers) {
    const int i = piece / across * Unit::kSide, j = piece % across * Unit::kSide;
    typename Unit::Sum sum;
    Unit::clear(sum);
    Unit::multiply(sum, a, b, i, j, depth);
    Unit::put(sum, to + i * leading + j, leading);
  }
}

// Sums [rows, columns] that stay with their workers while products are added.
template <class Unit>
struct TileSums {
  typename Unit::Sum sums[Unit::kPieces];
  int across, pieces;

  static constexpr bool fit(int64_t rows, int64_t columns) {
    return rows / Unit::kSide * (columns / Unit::kSide) <= int64_t{Unit::kPieces} * Unit::kWorkers;
  }
  __device__ TileSums(int rows, int columns) : across(columns / Unit::kSide), pieces(rows / Unit::kSide * across) {
    for_pieces([](auto& sum, int, int) { Unit::clear(sum); });
  }
  // body(piece, row, column)
  template <class Body>
  __device__ void for_pieces(const Body& body) {
#pragma unroll
    for (int n = 0; n < Unit::kPieces; ++n) {
      const int piece = Unit::worker() + n * Unit::kWorkers;
      if (piece < pieces) body(sums[n], piece / across * Unit::kSide, piece % across * Unit::kSide);
    }
  }
  template <class A, class B>
  __device__ void add(const A& a, const B& b, int depth) {
    for_pieces([&](auto& sum, int i, int j) { Unit::multiply(sum, a, b, i, j, depth); });
  }
};

}  // namespace metroplex::cuda::kernels

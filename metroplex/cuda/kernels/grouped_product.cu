// One launch for all groups. Of halves a block of threads makes tiles of 128 x 128 of one group's result by the
// tensor cores, of the others tiles of 64 x 64 by plain multiply-adds. Neighbouring blocks have the same columns and
// other rows, so that the weights which they share are read from memory once. How many rows a group has the host does
// not know: there are blocks for twice the mean, and they go round.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include <algorithm>

#include "cuda/kernels/grouped_product.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/wide_access.h"

namespace metroplex::cuda::kernels {
namespace {

constexpr int kTile = 64, kDepth = 16, kPadded = kTile + 16;
constexpr int kHalfTile = 128, kHalfDepth = 32, kPack = 8;  // of halves: a tile, a step of the sum, a wide access

__global__ void arguments_kernel(const int64_t* counts, GroupedSource source, int64_t* arguments) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  const GroupedOperand operands[] = {source.a, source.b, source.c};
  const int64_t groups = source.groups, home = groups - source.clones;
  int64_t first = 0;
  for (int64_t e = 0; e < groups; ++e) {
    const int64_t left = source.rows - first, count = counts[e] < left ? counts[e] : left,
                  rows = count > 0 ? count : 0;
    for (int64_t i = 0; i < 3; ++i) {
      const GroupedOperand& o = operands[i];
      const bool in_clones = o.group_stride != 0 && e >= home;
      const int64_t at = o.group_stride != 0 ? (in_clones ? e - home : e) * o.group_stride : first * o.leading;
      arguments[(kPointerA + i) * groups + e] =
          reinterpret_cast<int64_t>(in_clones ? o.clones : o.base) + at * o.element_bytes;
      arguments[(kLeadingA + i) * groups + e] = o.leading;
    }
    arguments[kGroupRows * groups + e] = rows;
    arguments[kGroupAdds * groups + e] = e < home ? source.adds : source.clones_add;
    first += rows;
  }
}

template <class T>
struct Problem {
  const T *a, *b;
  void* c;
  int64_t lda, ldb, ldc, m, n, k;
  bool a_by_k, b_by_n, adds, wide_c;
};

template <class T>
__device__ Problem<T> problem_of(const int64_t* arguments, const GroupedShape& s, int64_t e) {
  const int64_t* const of = arguments + e;
  const int64_t groups = s.groups, rows = of[kGroupRows * groups];
  Problem<T> p{reinterpret_cast<const T*>(of[kPointerA * groups]),
               reinterpret_cast<const T*>(of[kPointerB * groups]),
               reinterpret_cast<void*>(of[kPointerC * groups]),
               of[kLeadingA * groups],
               of[kLeadingB * groups],
               of[kLeadingC * groups],
               rows,
               s.out,
               s.in,
               false,
               false,
               false,
               false};
  if (s.op == GroupedOp::forward) {
    p.b_by_n = true;
  } else if (s.op == GroupedOp::input_gradient) {
    p.n = s.in, p.k = s.out;
  } else {
    p.adds = of[kGroupAdds * groups] != 0;
    p.m = rows > 0 || !p.adds ? s.out : 0, p.n = s.in, p.k = rows, p.a_by_k = true, p.wide_c = s.wide_sum;
  }
  return p;
}

// A tile [kDepth][kTile] of an operand that lies [k][own], or [own][k] where `by_own`; outside it is 0.
template <class T>
__device__ void fetch(const T* source, int64_t ld, bool by_own, int64_t own, int64_t own_end, int64_t k,
                      int64_t k_end, T (*tile)[kPadded]) {
  for (int i = static_cast<int>(threadIdx.x); i < kDepth * kTile; i += static_cast<int>(kThreads)) {
    const int depth = by_own ? i % kDepth : i / kTile, column = by_own ? i / kDepth : i % kTile;
    const int64_t at_k = k + depth, at_own = own + column;
    T value{};
    if (at_k < k_end && at_own < own_end) value = by_own ? source[at_own * ld + at_k] : source[at_k * ld + at_own];
    tile[depth][column] = value;
  }
}

template <class T>
__device__ void store_sum(const Problem<T>& p, int64_t row, int64_t column, Wide<T> sum) {
  if (row >= p.m || column >= p.n) return;
  const int64_t at = row * p.ldc + column;
  if (p.wide_c) {
    Wide<T>* const to = static_cast<Wide<T>*>(p.c) + at;
    *to = p.adds ? *to + sum : sum;
  } else {
    T* const to = static_cast<T*>(p.c) + at;
    *to = store<T>(p.adds ? load(*to) + sum : sum);
  }
}

// Each thread 4 x 4 sums, 16 apart.
template <class T>
__device__ void plain_tile(const Problem<T>& p, int64_t m, int64_t n) {
  __shared__ T a[kDepth][kPadded], b[kDepth][kPadded];
  Wide<T> sums[4][4] = {};
  const int row = static_cast<int>(threadIdx.x) / 16, column = static_cast<int>(threadIdx.x) % 16;
  for (int64_t k = 0; k < p.k; k += kDepth) {
    fetch(p.a, p.lda, !p.a_by_k, m, p.m, k, p.k, a);
    fetch(p.b, p.ldb, p.b_by_n, n, p.n, k, p.k, b);
    __syncthreads();
    for (int depth = 0; depth < kDepth; ++depth) {
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) sums[i][j] += load(a[depth][row + 16 * i]) * load(b[depth][column + 16 * j]);
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) store_sum(p, m + row + 16 * i, n + column + 16 * j, sums[i][j]);
  }
}

// One operand of a tile, kHalfTile of its own rows or columns, a step of kHalfDepth of the sum at a time; zeros
// outside. In shared memory it lies as in global memory: [own][k] where `by_own`, else [k][own], rows padded so that
// eight of them are in different banks.
template <class T, bool by_own>
struct HalfSide {
  static constexpr int kColumns = by_own ? kHalfDepth : kHalfTile, kLeading = kColumns + kPack;
  static constexpr int kElements = (by_own ? kHalfTile : kHalfDepth) * kLeading;
  static constexpr int kOfRow = kColumns / kPack, kApart = static_cast<int>(kThreads) / kOfRow;
  static constexpr int kHeld = kHalfTile * kHalfDepth / kPack / static_cast<int>(kThreads);
  const T* next;  // what the thread fetches first in the next step; the others are kApart rows apart
  int64_t ld;
  int own;    // rows or columns that are inside
  bool wide;  // 16 bytes at once
  uint4 held[kHeld];

  // `left`: of them, from `first` on.
  __device__ HalfSide(const T* source, int64_t leading, int64_t first, int64_t left)
      : next(source + first * (by_own ? leading : 1) + row() * leading + column()),
        ld(leading),
        own(static_cast<int>(left < kHalfTile ? left : kHalfTile)),
        wide(leading % kPack == 0 && reinterpret_cast<uintptr_t>(source) % kWideBytes == 0) {}
  static __device__ int row() { return static_cast<int>(threadIdx.x) / kOfRow; }
  static __device__ int column() { return static_cast<int>(threadIdx.x) % kOfRow * kPack; }
  // `depth` of the step is inside.
  __device__ void fetch(int depth) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int left = row() + i * kApart < (by_own ? own : depth) ? (by_own ? depth : own) - column() : 0;
      const T* const from = next + i * kApart * ld;
      held[i] = wide && left >= kPack ? *reinterpret_cast<const uint4*>(from) : single(from, left);
    }
    next += by_own ? kHalfDepth : kHalfDepth * ld;
  }
  static __device__ uint4 single(const T* from, int left) {
    Pack<T> pack{};
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      if (e < left) pack.values[e] = from[e];
    }
    return __builtin_bit_cast(uint4, pack);
  }
  __device__ void put(T* tile) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      *reinterpret_cast<uint4*>(tile + (row() + i * kApart) * kLeading + column()) = held[i];
  }
  // Where the 16 x 16 at `first` of its own begin, `depth` into the step.
  static __device__ const T* piece(const T* tile, int first, int depth) {
    return by_own ? tile + first * kLeading + depth : tile + depth * kLeading + first;
  }
};

// 16 x 16 sums of a warp: a lane has eight neighbours of a row.
template <class T>
__device__ void store_patch(const Problem<T>& p, int64_t m, int64_t n, const float* patch, bool wide) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), row = lane / 2, column = lane % 2 * kPack;
  const float* const sums = patch + row * 16 + column;
  if (!wide || n + column + kPack > p.n) {
    for (int e = 0; e < kPack; ++e) store_sum(p, m + row, n + column + e, sums[e]);
    return;
  }
  if (m + row >= p.m) return;
  const int64_t at = (m + row) * p.ldc + n + column;
  const auto put = [&](auto* to) {
    using C = std::remove_reference_t<decltype(*to)>;
    Elements<C, kPack> sum, before{};
    if (p.adds) before.read(to);
    for (int e = 0; e < kPack; ++e) sum.values[e] = before.values[e] + sums[e];
    sum.write(to);
  };
  p.wide_c ? put(static_cast<float*>(p.c) + at) : put(static_cast<T*>(p.c) + at);
}

// Each warp 64 x 32 of the sums. While a step is multiplied the next one is on its way into registers.
template <class T, bool a_by_own, bool b_by_own>
__device__ void half_tile(const Problem<T>& p, int64_t m, int64_t n) {
  namespace wmma = nvcuda::wmma;
  using Native = std::conditional_t<std::is_same_v<T, Bf16>, __nv_bfloat16, __half>;
  using A = HalfSide<T, a_by_own>;
  using B = HalfSide<T, b_by_own>;
  using LayoutA = std::conditional_t<a_by_own, wmma::row_major, wmma::col_major>;
  using LayoutB = std::conditional_t<b_by_own, wmma::col_major, wmma::row_major>;
  constexpr int kSide = 16, kDown = 4, kAcross = 2;  // pieces of a warp
  __shared__ __align__(32) T tiles[2][A::kElements + B::kElements];
  const int warp = static_cast<int>(threadIdx.x / kWarp), down = warp / 4 * kDown * kSide,
            across = warp % 4 * kAcross * kSide;
  A a(p.a, p.lda, m, p.m - m);
  B b(p.b, p.ldb, n, p.n - n);
  wmma::fragment<wmma::accumulator, kSide, kSide, kSide, float> sums[kDown][kAcross];
#pragma unroll
  for (int i = 0; i < kDown * kAcross; ++i) wmma::fill_fragment(sums[i / kAcross][i % kAcross], 0.0F);
  int stage = 0;
  const auto fetch = [&](int64_t left) {
    const int depth = static_cast<int>(left < kHalfDepth ? left : kHalfDepth);
    a.fetch(depth);
    b.fetch(depth);
  };
  const auto put = [&](int to) {
    a.put(tiles[to]);
    b.put(tiles[to] + A::kElements);
  };
  fetch(p.k);
  put(stage);
  __syncthreads();
  for (int64_t left = p.k; left > 0; left -= kHalfDepth) {
    const bool more = left > kHalfDepth;
    if (more) fetch(left - kHalfDepth);
#pragma unroll
    for (int depth = 0; depth < kHalfDepth; depth += kSide) {
      wmma::fragment<wmma::matrix_b, kSide, kSide, kSide, Native, LayoutB> right[kAcross];
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        const T* const at = B::piece(tiles[stage] + A::kElements, across + j * kSide, depth);
        wmma::load_matrix_sync(right[j], reinterpret_cast<const Native*>(at), B::kLeading);
      }
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        wmma::fragment<wmma::matrix_a, kSide, kSide, kSide, Native, LayoutA> left;
        const T* const at = A::piece(tiles[stage], down + i * kSide, depth);
        wmma::load_matrix_sync(left, reinterpret_cast<const Native*>(at), A::kLeading);
        for (int j = 0; j < kAcross; ++j) wmma::mma_sync(sums[i][j], left, right[j], sums[i][j]);
      }
    }
    stage = 1 - stage;
    if (more) put(stage);
    __syncthreads();
  }
  // The patches lie where the tiles were.
  float* const patch = reinterpret_cast<float*>(&tiles[0][0]) + warp * kSide * kSide;
  const bool wide = p.ldc % kPack == 0 && reinterpret_cast<uintptr_t>(p.c) % kWideBytes == 0;
#pragma unroll
  for (int i = 0; i < kDown * kAcross; ++i) {
    wmma::store_matrix_sync(patch, sums[i / kAcross][i % kAcross], kSide, wmma::mem_row_major);
    __syncwarp();
    store_patch(p, m + down + i / kAcross * kSide, n + across + i % kAcross * kSide, patch, wide);
    __syncwarp();  // before the next piece takes its place
  }
  __syncthreads();  // before the next tile does
}

template <class T>
constexpr int kSideOf = kIsHalf<T> ? kHalfTile : kTile;

// `slots` blocks share the tiles of some columns of a group.
template <class T, GroupedOp op>
__global__ void __launch_bounds__(kThreads, kIsHalf<T> ? 2 : 1)
    product_kernel(const int64_t* arguments, GroupedShape shape, unsigned slots) {
  const Problem<T> p = problem_of<T>(arguments, shape, blockIdx.z);
  const int64_t n = int64_t{blockIdx.x / slots} * kSideOf<T>;
  for (int64_t m = int64_t{blockIdx.x % slots} * kSideOf<T>; m < p.m; m += int64_t{slots} * kSideOf<T>) {
    if constexpr (kIsHalf<T>) {
      half_tile<T, op != GroupedOp::weight_gradient, op == GroupedOp::forward>(p, m, n);
    } else {
      plain_tile(p, m, n);
    }
  }
}

int64_t tiles_of(int64_t n, int64_t side) { return std::max<int64_t>(1, (n + side - 1) / side); }

}  // namespace

void grouped_arguments_cuda(const int64_t* counts, const GroupedSource& source, int64_t* arguments,
                            CUstream_st* stream) {
  if (source.groups == 0) return;
  launch_kernel("grouped_arguments", arguments_kernel, Grid{1, 32, 0, stream}, counts, source, arguments);
}

template <class T>
void grouped_product_cuda(const int64_t* arguments, const GroupedShape& s, CUstream_st* stream) {
  const bool by_rows = s.op != GroupedOp::weight_gradient;
  const int64_t n = s.op == GroupedOp::forward ? s.out : s.in;
  if (s.groups == 0 || n == 0 || (by_rows && s.rows == 0)) return;
  constexpr int64_t kSide = kSideOf<T>, kMost = 32;
  const int64_t mean = tiles_of((s.rows + s.groups - 1) / s.groups, kSide),
                slots = std::min(by_rows ? 2 * mean : tiles_of(s.out, kSide), kMost);
  const auto with = [&](auto* kernel) {
    const dim3 grid(static_cast<unsigned>(tiles_of(n, kSide) * slots), 1, static_cast<unsigned>(s.groups));
    launch_kernel("grouped_product", kernel, Grid{grid, kThreads, 0, stream}, arguments, s,
                  static_cast<unsigned>(slots));
  };
  if (s.op == GroupedOp::forward) with(product_kernel<T, GroupedOp::forward>);
  if (s.op == GroupedOp::input_gradient) with(product_kernel<T, GroupedOp::input_gradient>);
  if (s.op == GroupedOp::weight_gradient) with(product_kernel<T, GroupedOp::weight_gradient>);
}

#define MPX_INSTANTIATE(T) template void grouped_product_cuda<T>(const int64_t*, const GroupedShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels

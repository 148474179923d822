// One launch for all groups. A block of threads makes a tile of 64 x 64 of one group's result: halves by the tensor
// cores, the others by plain multiply-adds. The grid has room for whatever the counts will be; a block beyond the
// tiles of its group ends at once.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include <algorithm>

#include "cuda/kernels/grouped_product.h"
#include "cuda/kernels/launch.h"

namespace metroplex::cuda::kernels {
namespace {

constexpr int kTile = 64, kDepth = 16, kPadded = kTile + 16;  // fragments begin at multiples of 32 bytes

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

// Each warp some pieces of kSide x kSide sums.
template <class T>
__device__ void half_tile(const Problem<T>& p, int64_t m, int64_t n) {
  namespace wmma = nvcuda::wmma;
  using Native = std::conditional_t<std::is_same_v<T, Bf16>, __nv_bfloat16, __half>;
  constexpr int kSide = 16, kAcross = kTile / kSide, kPieces = kAcross * kAcross / static_cast<int>(kWarps);
  __shared__ __align__(32) T a[kDepth][kPadded], b[kDepth][kPadded];
  __shared__ __align__(32) float patches[kWarps][kSide * kSide];
  wmma::fragment<wmma::accumulator, kSide, kSide, kSide, float> sums[kPieces];
  const int first = static_cast<int>(threadIdx.x / kWarp) * kPieces;
  for (auto& sum : sums) wmma::fill_fragment(sum, 0.0F);
  for (int64_t k = 0; k < p.k; k += kDepth) {
    fetch(p.a, p.lda, !p.a_by_k, m, p.m, k, p.k, a);
    fetch(p.b, p.ldb, p.b_by_n, n, p.n, k, p.k, b);
    __syncthreads();
    for (int i = 0; i < kPieces; ++i) {
      wmma::fragment<wmma::matrix_a, kSide, kSide, kSide, Native, wmma::col_major> left;
      wmma::fragment<wmma::matrix_b, kSide, kSide, kSide, Native, wmma::row_major> right;
      const int row = (first + i) / kAcross * kSide, column = (first + i) % kAcross * kSide;
      wmma::load_matrix_sync(left, reinterpret_cast<const Native*>(&a[0][row]), kPadded);
      wmma::load_matrix_sync(right, reinterpret_cast<const Native*>(&b[0][column]), kPadded);
      wmma::mma_sync(sums[i], left, right, sums[i]);
    }
    __syncthreads();
  }
  float* const patch = patches[threadIdx.x / kWarp];
  for (int i = 0; i < kPieces; ++i) {
    const int64_t row = m + (first + i) / kAcross * kSide, column = n + (first + i) % kAcross * kSide;
    wmma::store_matrix_sync(patch, sums[i], kSide, wmma::mem_row_major);
    __syncwarp();
    for (int e = static_cast<int>(threadIdx.x % kWarp); e < kSide * kSide; e += static_cast<int>(kWarp))
      store_sum(p, row + e / kSide, column + e % kSide, patch[e]);
    __syncwarp();  // before the next piece takes its place
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) product_kernel(const int64_t* arguments, GroupedShape shape) {
  const Problem<T> p = problem_of<T>(arguments, shape, blockIdx.z);
  const int64_t n = int64_t{blockIdx.x} * kTile;
  for (int64_t m = int64_t{blockIdx.y} * kTile; m < p.m; m += int64_t{gridDim.y} * kTile) {
    if constexpr (kIsHalf<T>) {
      half_tile(p, m, n);
    } else {
      plain_tile(p, m, n);
    }
  }
}

unsigned tiles(int64_t n, int64_t most) {
  return static_cast<unsigned>(std::clamp<int64_t>((n + kTile - 1) / kTile, 1, most));
}

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
  // Rows of a group are few as a rule: what has more goes round.
  const dim3 grid(tiles(n, INT32_MAX), tiles(by_rows ? s.rows : s.out, by_rows ? 32 : 65535),
                  static_cast<unsigned>(s.groups));
  launch_kernel("grouped_product", product_kernel<T>, Grid{grid, kThreads, 0, stream}, arguments, s);
}

#define MPX_INSTANTIATE(T) template void grouped_product_cuda<T>(const int64_t*, const GroupedShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels

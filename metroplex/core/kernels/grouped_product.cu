// One launch for all groups. A thread block computes one tile of one group's result: 128 x 128 for half types by
// tensor cores, 64 x 64 for other types by plain multiply-adds. The grid covers all possible counts; blocks after the
// last tile return at once.
#include <cuda_pipeline_primitives.h>

#include <algorithm>

#include "kernels/group_walk.h"
#include "kernels/grouped_product.h"
#include "kernels/half_fragment.h"
#include "kernels/launch.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {
namespace {

template <class T>
constexpr int64_t kTile = kIsHalf<T> ? 128 : 64;

constexpr MPX_INLINE int64_t tiles(int64_t n, int64_t side) { return (n + side - 1) / side; }

__global__ void arguments_kernel(const int64_t* counts, GroupedSource source, int64_t* arguments) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  const GroupedOperand operands[] = {source.a, source.b, source.c};
  const int64_t groups = source.groups, home = groups - source.replicas;
  int64_t first = 0;
  for (int64_t e = 0; e < groups; ++e) {
    const int64_t left = source.rows - first, count = counts[e] < left ? counts[e] : left,
                  rows = count > 0 ? count : 0;
    for (int64_t i = 0; i < 3; ++i) {
      const GroupedOperand& operand = operands[i];
      const bool in_replicas = operand.group_stride != 0 && e >= home;
      const int64_t at =
          operand.group_stride != 0 ? (in_replicas ? e - home : e) * operand.group_stride : first * operand.leading;
      arguments[(kPointerA + i) * groups + e] =
          reinterpret_cast<int64_t>(in_replicas ? operand.replicas : operand.base) + at * operand.element_bytes;
      arguments[(kLeadingA + i) * groups + e] = operand.leading;
    }
    arguments[kGroupRows * groups + e] = rows;
    arguments[kGroupAdds * groups + e] = e < home ? source.adds : source.replicas_add;
    arguments[kGroupFactor * groups + e] = make_factor(source, e);
    first += rows;
  }
}

// One warp.
__global__ void ends_kernel(const int64_t* counts, int64_t groups, int64_t rows, int32_t* ends) {
  GroupWalk walk{counts, groups, rows};
  for (int64_t first = 0; first < groups; first += kWarp) {
    const int64_t end = walk.scan(first);
    if (first + threadIdx.x < groups) ends[first + threadIdx.x] = static_cast<int32_t>(end);
    walk.end = __shfl_sync(kAll, end, kWarp - 1);
  }
}

template <class T>
struct Problem {
  const T *a, *b;
  void* c;
  int64_t lda, ldb, ldc, m, n, k;
  bool adds, wide_c;
  float factor;
};
// Storage order of operands: a [k, m] or [m, k], b [n, k] or [k, n].
template <GroupedOp op>
constexpr bool kAByM = op != GroupedOp::weight_gradient;
template <GroupedOp op>
constexpr bool kBByN = op == GroupedOp::forward;

template <GroupedOp op>
__device__ int64_t result_rows(const int64_t* arguments, const GroupedShape& shape, int64_t e) {
  const int64_t rows = arguments[kGroupRows * shape.groups + e];
  if (op != GroupedOp::weight_gradient) return rows;
  return rows > 0 || arguments[kGroupAdds * shape.groups + e] == 0 ? shape.out : 0;
}
constexpr MPX_INLINE int64_t result_columns(GroupedOp op, const GroupedShape& shape) {
  return op == GroupedOp::forward ? shape.out : shape.in;
}

template <class T, GroupedOp op>
__device__ Problem<T> make_problem(const int64_t* arguments, const GroupedShape& shape, int64_t e) {
  const int64_t* const of = arguments + e;
  const int64_t groups = shape.groups;
  constexpr bool kWeight = op == GroupedOp::weight_gradient;
  return {reinterpret_cast<const T*>(of[kPointerA * groups]),
          reinterpret_cast<const T*>(of[kPointerB * groups]),
          reinterpret_cast<void*>(of[kPointerC * groups]),
          of[kLeadingA * groups],
          of[kLeadingB * groups],
          of[kLeadingC * groups],
          result_rows<op>(arguments, shape, e),
          result_columns(op, shape),
          op == GroupedOp::forward ? shape.in
          : kWeight                ? of[kGroupRows * groups]
                                   : shape.out,
          kWeight && of[kGroupAdds * groups] != 0,
          kWeight && shape.wide_sum,
          read_factor(of[kGroupFactor * groups])};
}

struct Place {
  int group, m, n;  // m and n: tile indices; group < 0: none
};

// The grid lists all tiles of a group, then those of the next. Within a group, bands of kBand rows of tiles are
// processed column by column. Concurrent blocks then read few rows and few weights, which fit into the L2 cache.
__device__ Place place_in(int64_t group, int64_t tile, int64_t high, int64_t wide) {
  constexpr int64_t kBand = 16;
  const Divided band = divided(tile, kBand * wide);
  const int64_t first = band.quotient * kBand, rows = high - first < kBand ? high - first : kBand;
  const Divided column = divided(band.remainder, rows);
  return {static_cast<int>(group), static_cast<int>(first + column.remainder), static_cast<int>(column.quotient)};
}

// Finds the tile of this block. A warp counts the tiles of 32 groups at once.
template <GroupedOp op>
__device__ Place find_place(const int64_t* arguments, const GroupedShape& shape, int64_t side) {
  const int64_t wide = tiles(result_columns(op, shape), side);
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  int64_t left = blockIdx.x;
  for (int64_t first = 0; first < shape.groups; first += kWarp) {
    const int64_t e = first + lane;
    const int64_t high = e < shape.groups ? tiles(result_rows<op>(arguments, shape, e), side) : 0;
    int64_t until = high * wide;  // tiles of this lane's group and all previous ones
    for (int apart = 1; apart < static_cast<int>(kWarp); apart *= 2) {
      const int64_t before = __shfl_sync(kAll, until, lane >= apart ? lane - apart : lane);
      if (lane >= apart) until += before;
    }
    const int which = __popc(__ballot_sync(kAll, until <= left));
    if (which < static_cast<int>(kWarp)) {
      const int64_t of_group = __shfl_sync(kAll, high, which);
      return place_in(first + which, left - (__shfl_sync(kAll, until, which) - of_group * wide), of_group, wide);
    }
    left -= __shfl_sync(kAll, until, static_cast<int>(kWarp) - 1);
  }
  return {-1, 0, 0};
}

constexpr int kDepth = 16, kPadded = kTile<float> + 16;

// Loads a tile [kDepth][kTile] of an operand stored as [k][own], or [own][k] if `by_own`; elements outside are 0.
template <class T>
__device__ void fetch(const T* source, int64_t ld, bool by_own, int64_t own, int64_t own_end, int64_t k,
                      int64_t k_end, T (*tile)[kPadded]) {
  constexpr int kSide = kTile<T>;
  for (int i = static_cast<int>(threadIdx.x); i < kDepth * kSide; i += static_cast<int>(kThreads)) {
    const int depth = by_own ? i % kDepth : i / kSide, column = by_own ? i / kDepth : i % kSide;
    const int64_t at_k = k + depth, at_own = own + column;
    T value{};
    if (at_k < k_end && at_own < own_end) value = by_own ? source[at_own * ld + at_k] : source[at_k * ld + at_own];
    tile[depth][column] = value;
  }
}

template <class T>
__device__ void store_sum(const Problem<T>& problem, int64_t row, int64_t column, T sum) {
  if (row >= problem.m || column >= problem.n) return;
  T* const to = static_cast<T*>(problem.c) + row * problem.ldc + column;
  sum *= static_cast<T>(problem.factor);
  *to = problem.adds ? *to + sum : sum;
}

// Each thread computes 4 x 4 sums, 16 apart.
template <class T, GroupedOp op>
__device__ void plain_tile(const Problem<T>& problem, int64_t m, int64_t n) {
  __shared__ T a[kDepth][kPadded], b[kDepth][kPadded];
  T sums[4][4] = {};
  const int row = static_cast<int>(threadIdx.x) / 16, column = static_cast<int>(threadIdx.x) % 16;
  for (int64_t k = 0; k < problem.k; k += kDepth) {
    fetch(problem.a, problem.lda, kAByM<op>, m, problem.m, k, problem.k, a);
    fetch(problem.b, problem.ldb, kBByN<op>, n, problem.n, k, problem.k, b);
    __syncthreads();
    for (int depth = 0; depth < kDepth; ++depth) {
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) sums[i][j] += a[depth][row + 16 * i] * b[depth][column + 16 * j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) store_sum(problem, m + row + 16 * i, n + column + 16 * j, sums[i][j]);
  }
}

// Half types. A step multiplies kStep values of k from one of two stages in shared memory, while the next step's data
// is copied into the other (cp.async). A warp computes 64 x 64 of the tile, in fragments of kSide x kSide: per
// product, it reads a third less from shared memory than with 64 x 32.
constexpr int kHalfTile = kTile<Bf16>, kStep = 32, kSide = 16, kPack = 8;
constexpr int kHigh = 4, kAcross = 4, kWarpsAcross = kHalfTile / (kAcross * kSide);
constexpr int kHalfThreads = kHalfTile * kHalfTile / (kHigh * kAcross * kSide * kSide) * static_cast<int>(kWarp);
template <class T>
constexpr int kTileThreads = kIsHalf<T> ? kHalfThreads : static_cast<int>(kThreads);

// An operand's data for one step, in the line order of global memory: [own][k] if `by_own`, else [k][own]. The pitch
// aligns fragments to 32 bytes and places eight lines of a fragment in different banks.
template <bool by_own>
struct Slab {
  static constexpr int kLines = by_own ? kHalfTile : kStep, kWidth = by_own ? kStep : kHalfTile;
  static constexpr int kPitch = kWidth + kPack, kHalves = kLines * kPitch;
  static constexpr int kOfLine = kWidth / kPack, kApart = kHalfThreads / kOfLine;
  static constexpr int kOfThread = kLines / kApart;  // packs, in lines kApart apart
  static __device__ constexpr int at(int own, int k) { return by_own ? own * kPitch + k : k * kPitch + own; }
};

// Copies the packs of an operand that belong to one thread, step by step.
template <class T, bool by_own>
class Reader {
  using Of = Slab<by_own>;

 public:
  __device__ Reader(const T* source, int64_t ld, int64_t own, int64_t own_end) {
    wide_ = reinterpret_cast<uintptr_t>(source) % kWideBytes == 0 && ld % kPack == 0;
    if constexpr (by_own) {
      // Lines past the end are replaced by the last line: their products are not stored.
      for (int i = 0; i < Of::kOfThread; ++i) {
        const int64_t own_line = own + line() + i * Of::kApart;
        next_[i] = source + (own_line < own_end ? own_line : own_end - 1) * ld + column();
      }
      ahead_ = kStep;
    } else {
      const int64_t inside = own_end - own - column();
      inside_ = inside < kPack ? static_cast<int>(inside) : kPack;
      for (int i = 0; i < Of::kOfThread; ++i) next_[i] = source + (line() + i * Of::kApart) * ld + own + column();
      ahead_ = kStep * ld;
    }
  }

  // Starts the copies of the next step into `slab`. `left`: remaining values of k, including this step.
  __device__ void fetch(T* slab, int64_t left) {
    const int most = left < kStep ? static_cast<int>(left) : kStep;
#pragma unroll
    for (int i = 0; i < Of::kOfThread; ++i) {
      T* const to = slab + line() * Of::kPitch + column() + i * Of::kApart * Of::kPitch;
      const int inside = by_own ? most - column() : line() + i * Of::kApart < most ? inside_ : 0;
      const int count = inside < 0 ? 0 : inside < kPack ? inside : kPack;  // the other elements are zeros
      if (wide_) {
        __pipeline_memcpy_async(to, next_[i], kWideBytes, (kPack - count) * sizeof(T));
      } else {
#pragma unroll 1
        for (int e = 0; e < kPack; ++e) to[e] = e < count ? next_[i][e] : T{};
      }
      next_[i] += ahead_;
    }
  }

 private:
  static __device__ int line() { return static_cast<int>(threadIdx.x) / Of::kOfLine; }
  static __device__ int column() { return static_cast<int>(threadIdx.x) % Of::kOfLine * kPack; }

  const T* next_[Of::kOfThread];
  int64_t ahead_;
  int inside_ = kPack;
  bool wide_;
};

// One row of a warp's fragments, before it is stored to memory.
constexpr int kPatchPitch = kAcross * kSide + 4;

template <class C, int count>
__device__ void store_sums(C* to, const float* sums, float factor, bool adds) {
  Elements<C, count> all{};
  Elements<float, count> more;
  if (adds) all.read(to);
  more.read(sums);
  for (int i = 0; i < count; ++i) all.values[i] += more.values[i] * factor;
  all.write(to);
}

template <class C, class T>
__device__ void store_patch(const Problem<T>& problem, int64_t row, int64_t column, const float* patch) {
  constexpr int kCount = Pack<C>::kCount, kOfRow = kAcross * kSide / kCount;
  C* const c = static_cast<C*>(problem.c);
  const bool wide = reinterpret_cast<uintptr_t>(c) % kWideBytes == 0 && problem.ldc % kCount == 0;
  for (int i = static_cast<int>(threadIdx.x % kWarp); i < kSide * kOfRow; i += static_cast<int>(kWarp)) {
    const int down = i / kOfRow, right = i % kOfRow * kCount;
    if (row + down >= problem.m) return;
    C* const to = c + (row + down) * problem.ldc + column + right;
    const float* const sums = patch + down * kPatchPitch + right;
    const int64_t inside = problem.n - column - right;
    if (wide && inside >= kCount) {
      store_sums<C, kCount>(to, sums, problem.factor, problem.adds);
    } else {
      for (int e = 0; e < kCount && e < inside; ++e) store_sums<C, 1>(to + e, sums + e, problem.factor, problem.adds);
    }
  }
}

template <class T, GroupedOp op>
__device__ void half_tile(const int64_t* arguments, const GroupedShape& shape, const Place& place) {
  namespace wmma = nvcuda::wmma;
  using Native = std::conditional_t<std::is_same_v<T, Bf16>, __nv_bfloat16, __half>;
  using A = Slab<kAByM<op>>;
  using B = Slab<kBByN<op>>;
  using LayoutA = std::conditional_t<kAByM<op>, wmma::row_major, wmma::col_major>;
  using LayoutB = std::conditional_t<kBByN<op>, wmma::col_major, wmma::row_major>;
  constexpr int kStage = A::kHalves + B::kHalves, kPatch = kSide * kPatchPitch;
  static_assert(kHalfThreads / kWarp * kPatch * sizeof(float) <= 2 * kStage * sizeof(T));
  __shared__ __align__(32) T room[2 * kStage];
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int row = warp / kWarpsAcross * kHigh * kSide, column = warp % kWarpsAcross * kAcross * kSide;
  const int64_t m = int64_t{place.m} * kHalfTile, n = int64_t{place.n} * kHalfTile;
  wmma::fragment<wmma::accumulator, kSide, kSide, kSide, float> sums[kHigh][kAcross];
#pragma unroll
  for (auto& of_row : sums) {
#pragma unroll
    for (auto& sum : of_row) wmma::fill_fragment(sum, 0.0F);
  }
  const Problem<T> problem = make_problem<T, op>(arguments, shape, place.group);
  const bool outside = m + row >= problem.m || n + column >= problem.n;
  Reader<T, kAByM<op>> reader_a(problem.a, problem.lda, m, problem.m);
  Reader<T, kBByN<op>> reader_b(problem.b, problem.ldb, n, problem.n);
  const auto fetch = [&](T* stage, int64_t left) {
    if (left > 0) reader_a.fetch(stage, left), reader_b.fetch(stage + A::kHalves, left);
    __pipeline_commit();
  };
  fetch(room, problem.k);
  T* stage = room;
  for (int64_t left = problem.k; left > 0; left -= kStep) {
    T* const other = stage == room ? room + kStage : room;
    __pipeline_wait_prior(0);
    __syncthreads();  // the stage is full, and the other stage is no longer read
    fetch(other, left - kStep);
    const auto* const slab_a = reinterpret_cast<const Native*>(stage);
    const Native* const slab_b = slab_a + A::kHalves;
#pragma unroll
    for (int depth = 0; depth < kStep; depth += kSide) {
      if (outside) break;
      wmma::fragment<wmma::matrix_b, kSide, kSide, kSide, Native, LayoutB> right[kAcross];
#pragma unroll
      for (int j = 0; j < kAcross; ++j) load_fragment(right[j], slab_b + B::at(column + j * kSide, depth), B::kPitch);
#pragma unroll
      for (int i = 0; i < kHigh; ++i) {
        wmma::fragment<wmma::matrix_a, kSide, kSide, kSide, Native, LayoutA> above;
        load_fragment(above, slab_a + A::at(row + i * kSide, depth), A::kPitch);
#pragma unroll
        for (int j = 0; j < kAcross; ++j) wmma::mma_sync(sums[i][j], above, right[j], sums[i][j]);
      }
    }
    stage = other;
  }
  __syncthreads();  // before patches overwrite the stages
  if (outside) return;
  // Reads the arguments again, because registers are scarce during the steps.
  const Problem<T> to = make_problem<T, op>(arguments, shape, place.group);
  float* const patch = reinterpret_cast<float*>(room) + warp * kPatch;
#pragma unroll
  for (int i = 0; i < kHigh; ++i) {
#pragma unroll
    for (int j = 0; j < kAcross; ++j)
      wmma::store_matrix_sync(patch + j * kSide, sums[i][j], kPatchPitch, wmma::mem_row_major);
    __syncwarp();
    if (to.wide_c) {
      store_patch<float>(to, m + row + i * kSide, n + column, patch);
    } else {
      store_patch<T>(to, m + row + i * kSide, n + column, patch);
    }
    __syncwarp();  // before the next row overwrites the patch
  }
}

// An SM must be able to run two blocks.
template <class T, GroupedOp op>
__global__ void __launch_bounds__(kTileThreads<T>, 2) product_kernel(const int64_t* arguments, GroupedShape shape) {
  const Place place = find_place<op>(arguments, shape, kTile<T>);
  if (place.group < 0) return;
  if constexpr (kIsHalf<T>) {
    half_tile<T, op>(arguments, shape, place);
  } else {
    plain_tile<T, op>(make_problem<T, op>(arguments, shape, place.group), place.m * kTile<T>, place.n * kTile<T>);
  }
}

template <class T, GroupedOp op>
void launch_product(const int64_t* arguments, const GroupedShape& shape, CUstream_st* stream) {
  constexpr int64_t kBeside = kTile<T> - 1;  // maximum number of missing rows in a group's last tile
  const int64_t high = op == GroupedOp::weight_gradient
                           ? shape.groups * tiles(shape.out, kTile<T>)
                           : (shape.rows + kBeside * std::min(shape.groups, shape.rows)) / kTile<T>;
  const int64_t blocks = high * tiles(result_columns(op, shape), kTile<T>);
  if (blocks == 0) return;
  launch_kernel("grouped_product", product_kernel<T, op>,
                Grid{dim3(static_cast<unsigned>(blocks)), kTileThreads<T>, 0, stream}, arguments, shape);
}

}  // namespace

void grouped_arguments_cuda(const int64_t* counts, const GroupedSource& source, int64_t* arguments,
                            CUstream_st* stream) {
  if (source.groups == 0) return;
  launch_kernel("grouped_arguments", arguments_kernel, Grid{1, 32, 0, stream}, counts, source, arguments);
}

void group_ends_cuda(const int64_t* counts, int64_t groups, int64_t rows, int32_t* ends, CUstream_st* stream) {
  if (groups == 0) return;
  launch_kernel("group_ends", ends_kernel, Grid{1, kWarp, 0, stream}, counts, groups, rows, ends);
}

template <class T>
void grouped_product_cuda(const int64_t* arguments, const GroupedShape& shape, CUstream_st* stream) {
  switch (shape.op) {
    case GroupedOp::forward:
      return launch_product<T, GroupedOp::forward>(arguments, shape, stream);
    case GroupedOp::input_gradient:
      return launch_product<T, GroupedOp::input_gradient>(arguments, shape, stream);
    case GroupedOp::weight_gradient:
      return launch_product<T, GroupedOp::weight_gradient>(arguments, shape, stream);
  }
}

#define MPX_INSTANTIATE(T) template void grouped_product_cuda<T>(const int64_t*, const GroupedShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels

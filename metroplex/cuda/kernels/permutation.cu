#include "cuda/kernels/launch.h"
#include "cuda/kernels/permutation.h"

namespace metroplex::cuda::kernels {
namespace {

// Of this thread among those of the block for which `mine` is set: how many come before it; `all`: how many there
// are.
__device__ int64_t rank_in_block(bool mine, int64_t& all) {
  __shared__ int64_t warps[kThreads / 32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned votes = __ballot_sync(0xffffffffu, mine);
  if (lane == 0) warps[warp] = __popc(votes);
  __syncthreads();
  int64_t before = __popc(votes & ((1u << lane) - 1u));
  all = 0;
  for (unsigned w = 0; w < kThreads / 32; ++w) {
    if (w < warp) before += warps[w];
    all += warps[w];
  }
  __syncthreads();
  return before;
}

__global__ void __launch_bounds__(kThreads) fill_kernel(int64_t* x, int64_t value, int64_t n) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) x[i] = value;
}

// A block an expert.
__global__ void __launch_bounds__(kThreads)
    count_kernel(const int64_t* experts, int64_t* counts, PermutationShape s) {
  const int64_t e = blockIdx.x;
  int64_t sum = 0;
  for (int64_t begin = 0; begin < s.assignments; begin += kThreads) {
    const int64_t a = begin + threadIdx.x;
    int64_t all = 0;
    rank_in_block(a < s.assignments && experts[a] == s.first + e, all);
    sum += all;
  }
  if (threadIdx.x == 0) counts[e] = sum;
}

__device__ int64_t room_of(const int64_t* counts, int64_t e, int64_t capacity) {
  return capacity > 0 ? capacity : counts[e];
}

// A block an expert; it walks over the assignments in order, so rows keep it.
__global__ void __launch_bounds__(kThreads)
    place_kernel(const int64_t* experts, PermutationPlan plan, PermutationShape s) {
  const int64_t e = blockIdx.x, chunk = e / s.chunk * s.chunk;
  const int64_t chunk_end = chunk + s.chunk < s.num_experts ? chunk + s.chunk : s.num_experts;
  int64_t before = 0, inside = 0, step = 0;
  for (int64_t i = 0; i < chunk; ++i) before += room_of(plan.counts, i, s.capacity);
  for (int64_t i = chunk; i < chunk_end; ++i) {
    if (i < e) inside += room_of(plan.counts, i, s.capacity);
    step += room_of(plan.counts, i, s.capacity);
  }
  int64_t next = before * s.copies + inside;
  for (int64_t begin = 0; begin < s.assignments; begin += kThreads) {
    const int64_t a = begin + threadIdx.x;
    const bool mine = a < s.assignments && experts[a] == s.first + e;
    int64_t all = 0;
    const int64_t place = next + rank_in_block(mine, all);
    next += all;
    if (!mine) continue;
    for (int64_t copy = 0; copy < s.copies; ++copy) {
      plan.rows[a * s.copies + copy] = place + copy * step;
      plan.source[place + copy * step] = a;
    }
  }
}

// A block for each rank and expert.
__global__ void __launch_bounds__(kThreads)
    regroup_kernel(const int64_t* table, PermutationPlan plan, RegroupShape s) {
  const int64_t rank = blockIdx.x / s.num_experts, e = blockIdx.x % s.num_experts, count = table[blockIdx.x];
  int64_t from = 0, to = 0, total = 0;
  for (int64_t i = 0; i < s.ranks * s.num_experts; ++i) {
    const int64_t other_rank = i / s.num_experts, other = i % s.num_experts;
    if (i < blockIdx.x) from += s.capacity > 0 ? s.capacity : table[i];
    if (other < e || (other == e && other_rank < rank)) to += table[i];
    if (other == e) total += table[i];
  }
  for (int64_t k = threadIdx.x; k < count; k += blockDim.x) {
    plan.rows[from + k] = to + k;
    plan.source[to + k] = from + k;
  }
  if (rank == 0 && threadIdx.x == 0) plan.counts[e] = total;
}

template <class T>
__global__ void __launch_bounds__(kThreads) permute_kernel(const T* x, const int64_t* source, T* out, RowsShape s) {
  for (int64_t r = blockIdx.x; r < s.num_rows; r += gridDim.x) {
    const int64_t from = source[r];
    if (from < 0) continue;
    const T* row = x + from / s.divisor * s.width;
    for (int64_t c = threadIdx.x; c < s.width; c += blockDim.x) out[r * s.width + c] = row[c];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) sum_kernel(const T* x, const int64_t* rows, T* out, SumShape s) {
  for (int64_t t = blockIdx.x; t < s.tokens; t += gridDim.x) {
    for (int64_t c = threadIdx.x; c < s.width; c += blockDim.x) {
      Wide<T> sum = 0;
      for (int64_t j = 0; j < s.terms; ++j) {
        const int64_t row = rows[t * s.terms + j];
        if (row >= 0) sum += load(x[row * s.width + c]);
      }
      out[t * s.width + c] = store<T>(sum);
    }
  }
}

void fill(int64_t* x, int64_t n, CUstream_st* stream) {
  if (n == 0) return;
  launch_kernel("fill of a permutation", fill_kernel, Grid{blocks_for(n), kThreads, 0, stream}, x, int64_t{-1}, n);
}

}  // namespace

void plan_permutation_cuda(const int64_t* experts, const PermutationPlan& plan, const PermutationShape& shape,
                           CUstream_st* stream) {
  fill(plan.rows, shape.assignments * shape.copies, stream);
  fill(plan.source, shape.num_rows, stream);
  if (shape.num_experts == 0) return;
  const auto blocks = static_cast<unsigned>(shape.num_experts);
  launch_kernel("count_assignments", count_kernel, Grid{blocks, kThreads, 0, stream}, experts, plan.counts, shape);
  launch_kernel("plan_permutation", place_kernel, Grid{blocks, kThreads, 0, stream}, experts, plan, shape);
}

void plan_regroup_cuda(const int64_t* table, const PermutationPlan& plan, const RegroupShape& shape,
                       CUstream_st* stream) {
  fill(plan.rows, shape.num_in, stream);
  fill(plan.source, shape.num_out, stream);
  if (shape.num_experts == 0) return;
  launch_kernel("plan_regroup", regroup_kernel,
                Grid{static_cast<unsigned>(shape.ranks * shape.num_experts), kThreads, 0, stream}, table, plan,
                shape);
}

template <class T>
void permute_rows_cuda(const T* x, const int64_t* source, T* out, const RowsShape& shape, CUstream_st* stream) {
  if (shape.num_rows == 0) return;
  launch_kernel("permute_rows", permute_kernel<T>, Grid{blocks_for(shape.num_rows * kThreads), kThreads, 0, stream},
                x, source, out, shape);
}

template <class T>
void sum_rows_cuda(const T* x, const int64_t* rows, T* out, const SumShape& shape, CUstream_st* stream) {
  if (shape.tokens == 0) return;
  launch_kernel("sum_rows", sum_kernel<T>, Grid{blocks_for(shape.tokens * kThreads), kThreads, 0, stream}, x, rows,
                out, shape);
}

#define MPX_INSTANTIATE(T)                                                                          \
  template void permute_rows_cuda<T>(const T*, const int64_t*, T*, const RowsShape&, CUstream_st*); \
  template void sum_rows_cuda<T>(const T*, const int64_t*, T*, const SumShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels

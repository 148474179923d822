#include "kernels/launch.h"
#include "kernels/permutation.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {
namespace {

constexpr int64_t kTile = 1024, kMostExperts = 1024;

// Assignments are split into tiles, one per thread block, and tiles into one stretch per warp. There are three
// passes: count each tile's assignments per expert, sum the counts of previous tiles, and compute the rows. Between
// the passes, a tile's counts are stored in its range of plan.rows, which the last pass overwrites. The last tile has
// up to twice the size, so its counts fit too.
struct Tiles {
  int64_t size, count;
};
Tiles make_tiles(const PermutationShape& shape) {
  const int64_t size = shape.num_experts > kTile ? shape.num_experts : kTile;
  return {size, shape.assignments < size ? 1 : shape.assignments / size};
}

struct Stretch {
  int64_t begin, end;  // assignments
};
__device__ Stretch make_stretch(const PermutationShape& shape, const Tiles& tiles, unsigned warp) {
  const int64_t first = blockIdx.x * tiles.size,
                last = blockIdx.x + 1 == tiles.count ? shape.assignments : first + tiles.size;
  const int64_t length = (last - first + kWarps - 1) / kWarps, begin = first + warp * length;
  return {begin < last ? begin : last, begin + length < last ? begin + length : last};
}

// Returns the local index of an assignment's expert, or -1 if it gets no row.
__device__ int read_expert(const int64_t* experts, int64_t a, const Stretch& stretch, const PermutationShape& shape) {
  if (a >= stretch.end) return -1;
  const int64_t e = experts[a] - shape.first;
  return e >= 0 && e < shape.num_experts ? static_cast<int>(e) : -1;
}

// Writes -1, no row, to all of x.
__device__ void fill_rows(int64_t* x, int64_t n) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) x[i] = -1;
}
__global__ void __launch_bounds__(kThreads) fill_kernel(int64_t* x, int64_t n) { fill_rows(x, n); }

// Computes counts [warps, experts] of each warp's stretch in shared memory. All threads can read them on return.
__device__ void count_stretches(const int64_t* experts, const PermutationShape& shape, const Tiles& tiles,
                                int* counts) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int64_t i = threadIdx.x; i < kWarps * shape.num_experts; i += kThreads) counts[i] = 0;
  __syncthreads();
  const Stretch stretch = make_stretch(shape, tiles, warp);
  int* const mine = counts + warp * shape.num_experts;
  for (int64_t a = stretch.begin; a < stretch.end; a += kWarp) {
    const int e = read_expert(experts, a + lane, stretch, shape);
    const unsigned peers = __match_any_sync(kAll, e);
    if (e >= 0 && (peers & ((1U << lane) - 1U)) == 0) mine[e] += __popc(peers);
    __syncwarp();
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads)
    count_kernel(const int64_t* experts, PermutationPlan plan, PermutationShape shape, Tiles tiles) {
  fill_rows(plan.source, shape.num_rows);
  int* const counts = reinterpret_cast<int*>(dynamic_shared());
  count_stretches(experts, shape, tiles, counts);
  int64_t* const to = tiles.count == 1 ? plan.counts : plan.rows + blockIdx.x * tiles.size * shape.copies;
  for (int64_t e = threadIdx.x; e < shape.num_experts; e += kThreads) {
    int64_t sum = 0;
    for (unsigned w = 0; w < kWarps; ++w) sum += counts[w * shape.num_experts + e];
    to[e] = sum;
  }
}

// One warp per expert: replaces the counts of tiles by the sums over previous tiles.
__global__ void __launch_bounds__(kThreads)
    sum_tiles_kernel(PermutationPlan plan, PermutationShape shape, Tiles tiles) {
  const unsigned lane = threadIdx.x % kWarp;
  const int64_t e = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp, apart = tiles.size * shape.copies;
  if (e >= shape.num_experts) return;
  int64_t before = 0;
  for (int64_t first = 0; first < tiles.count; first += kWarp) {
    const int64_t tile = first + lane;
    const int64_t count = tile < tiles.count ? plan.rows[tile * apart + e] : 0;
    const int64_t sum = warp_scan(count);
    if (tile < tiles.count) plan.rows[tile * apart + e] = before + sum - count;
    before += __shfl_sync(kAll, sum, kWarp - 1);
  }
  if (lane == 0) plan.counts[e] = before;
}

__device__ int64_t expert_capacity(const int64_t* counts, int64_t e, int64_t capacity) {
  return capacity > 0 ? capacity : counts[e];
}

struct Rows {
  int64_t first, apart;  // first row of an expert's first copy; distance between its copies
};
__device__ Rows expert_rows(const int64_t* counts, const PermutationShape& shape, int64_t e) {
  const int64_t chunk = e / shape.chunk * shape.chunk;
  const int64_t chunk_end = chunk + shape.chunk < shape.num_experts ? chunk + shape.chunk : shape.num_experts;
  int64_t before = 0, inside = 0, step = 0;
  for (int64_t i = 0; i < chunk; ++i) before += expert_capacity(counts, i, shape.capacity);
  for (int64_t i = chunk; i < chunk_end; ++i) {
    if (i < e) inside += expert_capacity(counts, i, shape.capacity);
    step += expert_capacity(counts, i, shape.capacity);
  }
  return {before * shape.copies + inside, step};
}

// Shared memory: rows [experts], then the counts, which become the number of rows before a warp's stretch in its
// tile.
__global__ void __launch_bounds__(kThreads)
    place_kernel(const int64_t* experts, PermutationPlan plan, PermutationShape shape, Tiles tiles) {
  Rows* const rows = reinterpret_cast<Rows*>(dynamic_shared());
  int* const next = reinterpret_cast<int*>(rows + shape.num_experts);
  count_stretches(experts, shape, tiles, next);
  const int64_t* const before = plan.rows + blockIdx.x * tiles.size * shape.copies;
  for (int64_t e = threadIdx.x; e < shape.num_experts; e += kThreads) {
    Rows of = expert_rows(plan.counts, shape, e);
    if (tiles.count > 1) of.first += before[e];
    rows[e] = of;
    int sum = 0;
    for (unsigned w = 0; w < kWarps; ++w) {
      const int count = next[w * shape.num_experts + e];
      next[w * shape.num_experts + e] = sum;
      sum += count;
    }
  }
  __syncthreads();  // waits until `before` has been read
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Stretch stretch = make_stretch(shape, tiles, warp);
  int* const mine = next + warp * shape.num_experts;
  for (int64_t begin = stretch.begin; begin < stretch.end; begin += kWarp) {
    const int64_t a = begin + lane;
    const int e = read_expert(experts, a, stretch, shape);
    const unsigned peers = __match_any_sync(kAll, e), earlier = peers & ((1U << lane) - 1U);
    const int64_t place = e < 0 ? 0 : rows[e].first + mine[e] + __popc(earlier);
    __syncwarp();
    if (e >= 0 && earlier == 0) mine[e] += __popc(peers);
    __syncwarp();
    for (int64_t copy = 0; a < stretch.end && copy < shape.copies; ++copy) {
      const int64_t row = e < 0 ? -1 : place + copy * rows[e].apart;
      plan.rows[a * shape.copies + copy] = row;
      if (e >= 0) plan.source[row] = a;
    }
  }
}

// One thread block per rank and expert.
__global__ void __launch_bounds__(kThreads)
    regroup_kernel(const int64_t* table, PermutationPlan plan, RegroupShape shape) {
  const int64_t rank = blockIdx.x / shape.num_experts, e = blockIdx.x % shape.num_experts, count = table[blockIdx.x];
  int64_t from = 0, to = 0, total = 0;
  for (int64_t i = 0; i < shape.ranks * shape.num_experts; ++i) {
    const int64_t other_rank = i / shape.num_experts, other = i % shape.num_experts;
    if (i < blockIdx.x) from += shape.capacity > 0 ? shape.capacity : table[i];
    if (other < e || (other == e && other_rank < rank)) to += table[i];
    if (other == e) total += table[i];
  }
  for (int64_t k = threadIdx.x; k < count; k += blockDim.x) {
    plan.rows[from + k] = to + k;
    plan.source[to + k] = from + k;
  }
  if (rank == 0 && threadIdx.x == 0) plan.counts[e] = total;
}

// One warp per row, `count` elements per lane and access.
template <class T, int64_t count>
__global__ void __launch_bounds__(kThreads)
    permute_kernel(const T* x, const int64_t* source, T* out, RowsShape shape, RowNumbers numbers) {
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  for (int64_t r = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; r < shape.num_rows; r += stride) {
    const int64_t from = source[r];
    if (from < 0) continue;
    const T* const row = x + from / shape.divisor * shape.width;
    T* const to = out + r * shape.width;
    if (threadIdx.x % kWarp == 0) numbers.move(from, r);
    for (int64_t c = threadIdx.x % kWarp * count; c < shape.width; c += kWarp * count) {
      if constexpr (count == 1) to[c] = row[c];
      else store_pack(to + c, load_pack(row + c));
    }
  }
}

template <class T, int64_t count>
__global__ void __launch_bounds__(kThreads) sum_kernel(const T* x, const int64_t* rows, T* out, SumShape shape) {
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  for (int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; t < shape.tokens; t += stride) {
    for (int64_t c = threadIdx.x % kWarp * count; c < shape.width; c += kWarp * count) {
      Elements<T, count> sum{};
      for (int64_t j = 0; j < shape.terms; ++j) {
        const int64_t row = rows[t * shape.terms + j];
        if (row < 0) continue;
        Elements<T, count> term;
        term.read(x + row * shape.width + c);
        for (int64_t i = 0; i < count; ++i) sum.values[i] += term.values[i];
      }
      sum.write(out + t * shape.width + c);
    }
  }
}

template <class T>
bool in_packs(int64_t width, const T* x, const T* out) {
  return width % Pack<T>::kCount == 0 && aligned_for_packs(x, out);
}

void fill(int64_t* x, int64_t n, CUstream_st* stream) {
  if (n == 0) return;
  launch_kernel("fill_permutation", fill_kernel, Grid{blocks_for(n), kThreads, 0, stream}, x, n);
}

}  // namespace

void plan_permutation_cuda(const int64_t* experts, const PermutationPlan& plan, const PermutationShape& shape,
                           CUstream_st* stream) {
  if (shape.num_experts == 0) {
    fill(plan.source, shape.num_rows, stream);
    return fill(plan.rows, shape.assignments * shape.copies, stream);
  }
  MPX_CHECK(shape.num_experts <= kMostExperts, "cuda", "rows of ", shape.num_experts,
            " experts must be sorted on one GPU, which supports at most ", kMostExperts,
            "; share them among more ranks (expert_model_parallel_size)");
  const Tiles tiles = make_tiles(shape);
  const auto blocks = static_cast<unsigned>(tiles.count), of_experts = static_cast<unsigned>(shape.num_experts);
  const auto counts = static_cast<unsigned>(kWarps * sizeof(int)) * of_experts,
             rows = static_cast<unsigned>(sizeof(Rows)) * of_experts;
  launch_kernel("count_assignments", count_kernel, Grid{blocks, kThreads, counts, stream}, experts, plan, shape,
                tiles);
  if (tiles.count > 1) {
    launch_kernel("sum_tiles", sum_tiles_kernel, Grid{(of_experts + kWarps - 1) / kWarps, kThreads, 0, stream}, plan,
                  shape, tiles);
  }
  launch_kernel("plan_permutation", place_kernel, Grid{blocks, kThreads, rows + counts, stream}, experts, plan, shape,
                tiles);
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
void permute_rows_cuda(const T* x, const int64_t* source, T* out, const RowsShape& shape, const RowNumbers& numbers,
                       CUstream_st* stream) {
  if (shape.num_rows == 0) return;
  const auto kernel = in_packs(shape.width, x, static_cast<const T*>(out)) ? permute_kernel<T, Pack<T>::kCount>
                                                                           : permute_kernel<T, 1>;
  launch_kernel("permute_rows", kernel, Grid{blocks_for(shape.num_rows * kWarp), kThreads, 0, stream}, x, source, out,
                shape, numbers);
}

template <class T>
void sum_rows_cuda(const T* x, const int64_t* rows, T* out, const SumShape& shape, CUstream_st* stream) {
  if (shape.tokens == 0) return;
  const auto kernel =
      in_packs(shape.width, x, static_cast<const T*>(out)) ? sum_kernel<T, Pack<T>::kCount> : sum_kernel<T, 1>;
  launch_kernel("sum_rows", kernel, Grid{blocks_for(shape.tokens * kWarp), kThreads, 0, stream}, x, rows, out, shape);
}

#define MPX_INSTANTIATE(T)                                                                              \
  template void permute_rows_cuda<T>(const T*, const int64_t*, T*, const RowsShape&, const RowNumbers&, \
                                     CUstream_st*);                                                     \
  template void sum_rows_cuda<T>(const T*, const int64_t*, T*, const SumShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels

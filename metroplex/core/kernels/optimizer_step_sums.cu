#include "kernels/launch.h"
#include "kernels/optimizer_step.h"
#include "kernels/stored_numbers.h"

namespace metroplex::kernels {
namespace {

__device__ void add(GradientSums& to, const GradientSums& from) {
  to.sum_of_squares += from.sum_of_squares;
  to.num_nonfinite += from.num_nonfinite;
  to.num_zeros += from.num_zeros;
}

// Sums over the thread block; every thread gets the result.
__device__ GradientSums block_sum(const GradientSums& mine) {
  return {block_reduce(mine.sum_of_squares, Add()), block_reduce(mine.num_nonfinite, Add()),
          block_reduce(mine.num_zeros, Add())};
}

// Blocks of kSumsBlock elements of all ranges, in range order.
template <class Range>
struct SumsTable {
  Range ranges[kSumsOfLaunch];
  int64_t first[kSumsOfLaunch + 1];  // first block of each range, then the number of blocks
  bool packs[kSumsOfLaunch];         // kAtOnce elements per thread, else one
  int count;

  int64_t blocks() const { return first[count]; }
  bool is_full() const { return count == kSumsOfLaunch; }
  void add(const Range& range, bool with_packs) {
    if (range.n == 0) return;
    ranges[count] = range;
    packs[count] = with_packs;
    first[count + 1] = first[count] + gradient_sums_blocks(range.n);
    ++count;
  }
};
static_assert(sizeof(SumsTable<GradientRange>) <= kTableBytes && sizeof(SumsTable<ShardSum>) <= kTableBytes);

// Calls body(index of the range, block within the range, block) for all blocks that this thread block handles.
template <class Range, class Body>
__device__ void for_blocks(const SumsTable<Range>& table, const Body& body) {
  const int64_t blocks = table.first[table.count];
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int of = find_range(table.first, table.count, block);
    body(of, block - table.first[of], block);
  }
}

template <int64_t count>
struct AtOnce {
  static constexpr int64_t kCount = count;
};

// Sums block `block` of a range of n elements. body(AtOnce, sums, i) adds the elements from i on.
template <class Body>
__device__ GradientSums sum_elements(int64_t n, int64_t block, bool packs, const Body& body) {
  const int64_t begin = block * kSumsBlock, left = n - begin, size = left < kSumsBlock ? left : kSumsBlock,
                whole = packs ? size / kAtOnce * kAtOnce : 0;
  GradientSums sums;
  for (int64_t i = threadIdx.x * kAtOnce; i < whole; i += kThreads * kAtOnce)
    body(AtOnce<kAtOnce>(), sums, begin + i);
  for (int64_t i = whole + threadIdx.x; i < size; i += kThreads) body(AtOnce<1>(), sums, begin + i);
  return block_sum(sums);
}

template <int64_t count>
__device__ void add_elements(GradientSums& sums, const double (&x)[count]) {
  for (int64_t l = 0; l < count; ++l) add(sums, {x[l] * x[l], x[l] - x[l] != 0, x[l] == 0});
}

__global__ void __launch_bounds__(kThreads)
    partial_sums_kernel(const __grid_constant__ SumsTable<GradientRange> table, GradientSums* partial) {
  for_blocks(table, [&](int of, int64_t in_range, int64_t block) {
    const GradientRange& range = table.ranges[of];
    GradientSums total;
    if (range.summed) {
      if (threadIdx.x == 0) total = static_cast<const GradientSums*>(range.grad)[in_range];
    } else {
      total = sum_elements(range.n, in_range, table.packs[of], [&](auto at, GradientSums& sums, int64_t i) {
        double x[decltype(at)::kCount];
        load_stored<decltype(at)::kCount>(range.grad, range.number, i, x);
        add_elements(sums, x);
      });
    }
    if (threadIdx.x == 0) partial[block] = range.counts ? total : GradientSums{0, total.num_nonfinite, 0};
  });
}

// Writes elements of a sum of shards and returns them in `rounded`.
template <int64_t count, class T>
__device__ void add_shards(const ReceivedShards& received, const ShardSum& sum, int64_t i, double (&rounded)[count]) {
  const T* const shard = static_cast<const T*>(received.data) + sum.begin + i;
  T* const out = static_cast<T*>(sum.out) + i;
  Elements<T, count> total;
  total.read(shard);
  for (int rank = 1; rank < received.ranks; ++rank) total.add(shard + rank * received.size);
  if (received.adds) {
    for (float& value : total.values) value = load(store<T>(value));
    total.add(out);
  }
  total.write(out);
  for (int64_t l = 0; l < count; ++l) rounded[l] = load(store<T>(total.values[l]));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_shards_kernel(const __grid_constant__ SumsTable<ShardSum> table, ReceivedShards received) {
  for_blocks(table, [&](int of, int64_t in_range, int64_t) {
    const ShardSum& sum = table.ranges[of];
    const GradientSums total =
        sum_elements(sum.n, in_range, table.packs[of], [&](auto at, GradientSums& sums, int64_t i) {
          double x[decltype(at)::kCount];
          add_shards<decltype(at)::kCount, T>(received, sum, i, x);
          add_elements(sums, x);
        });
    if (threadIdx.x == 0 && sum.sums != nullptr) sum.sums[in_range] = total;
  });
}

__global__ void __launch_bounds__(kThreads)
    total_kernel(const GradientSums* partial, int64_t blocks, GradientSums* out) {
  GradientSums sums;
  for (int64_t b = threadIdx.x; b < blocks; b += kThreads) add(sums, partial[b]);
  const GradientSums total = block_sum(sums);
  if (threadIdx.x == 0) add(*out, total);
}

}  // namespace

void gradient_sums_cuda(const std::vector<GradientRange>& ranges, const GradientSumsPlace& place,
                        CUstream_st* stream) {
  for (size_t i = 0; i < ranges.size();) {
    SumsTable<GradientRange> table{};
    for (; i < ranges.size() && !table.is_full(); ++i) {
      MPX_ASSERT(ranges[i].number != Number::block8, "gradients are not stored as block8");
      table.add(ranges[i], aligned_for_packs(ranges[i].grad));
    }
    if (table.count == 0) return;
    const int64_t blocks = table.blocks();
    launch_kernel("gradient_sums", partial_sums_kernel, Grid{blocks_for(blocks * kThreads), kThreads, 0, stream},
                  table, place.workspace);
    launch_kernel("gradient_sums_total", total_kernel, Grid{1, kThreads, 0, stream}, place.workspace, blocks,
                  place.sums);
  }
}

void sum_shards_cuda(const std::vector<ShardSum>& all, const ReceivedShards& received, CUstream_st* stream) {
  const bool bf16 = received.number == Number::bf16, shards_align = received.size % kAtOnce == 0;
  for (size_t i = 0; i < all.size();) {
    SumsTable<ShardSum> table{};
    for (; i < all.size() && !table.is_full(); ++i)
      table.add(all[i], shards_align && all[i].begin % kAtOnce == 0 && aligned_for_packs(all[i].out, received.data));
    if (table.count == 0) return;
    launch_kernel("sum_shards", bf16 ? sum_shards_kernel<Bf16> : sum_shards_kernel<F16>,
                  Grid{blocks_for(table.blocks() * kThreads), kThreads, 0, stream}, table, received);
  }
}

}  // namespace metroplex::kernels

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
struct SumsTable {
  GradientRange ranges[kSumsOfLaunch];
  int64_t first[kSumsOfLaunch + 1];  // first block of each range, then the number of blocks
  bool packs[kSumsOfLaunch];         // kAtOnce elements per thread, else one
  int count;
};
static_assert(sizeof(SumsTable) <= kTableBytes);

template <int64_t count>
__device__ void add_elements(GradientSums& sums, const GradientRange& range, int64_t i) {
  double x[count];
  load_stored<count>(range.grad, range.number, i, x);
  for (int64_t l = 0; l < count; ++l) add(sums, {x[l] * x[l], x[l] - x[l] != 0, x[l] == 0});
}

__global__ void __launch_bounds__(kThreads)
    partial_sums_kernel(const __grid_constant__ SumsTable table, GradientSums* partial) {
  for (int64_t block = blockIdx.x; block < table.first[table.count]; block += gridDim.x) {
    const int of = find_range(table.first, table.count, block);
    const GradientRange& range = table.ranges[of];
    const int64_t begin = (block - table.first[of]) * kSumsBlock, left = range.n - begin,
                  n = left < kSumsBlock ? left : kSumsBlock, whole = table.packs[of] ? n / kAtOnce * kAtOnce : 0;
    GradientSums sums;
    for (int64_t i = threadIdx.x * kAtOnce; i < whole; i += kThreads * kAtOnce)
      add_elements<kAtOnce>(sums, range, begin + i);
    for (int64_t i = whole + threadIdx.x; i < n; i += kThreads) add_elements<1>(sums, range, begin + i);
    const GradientSums total = block_sum(sums);
    if (threadIdx.x == 0) partial[block] = range.counts ? total : GradientSums{0, total.num_nonfinite, 0};
  }
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
    SumsTable table{};
    for (; i < ranges.size() && table.count < kSumsOfLaunch; ++i) {
      const GradientRange& range = ranges[i];
      MPX_ASSERT(range.number != Number::block8, "gradients are not stored as block8");
      if (range.n == 0) continue;
      table.ranges[table.count] = range;
      table.packs[table.count] = aligned_for_packs(range.grad);
      table.first[table.count + 1] = table.first[table.count] + gradient_sums_blocks(range.n);
      ++table.count;
    }
    if (table.count == 0) return;
    const int64_t blocks = table.first[table.count];
    launch_kernel("gradient_sums", partial_sums_kernel, Grid{blocks_for(blocks * kThreads), kThreads, 0, stream},
                  table, place.workspace);
    launch_kernel("gradient_sums_total", total_kernel, Grid{1, kThreads, 0, stream}, place.workspace, blocks,
                  place.sums);
  }
}

}  // namespace metroplex::kernels

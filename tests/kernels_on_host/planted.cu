#include "kernels_on_host/planted.h"

#include <mma.h>

#include "kernels/launch.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels_on_host {
namespace {

using kernels::kThreads;

__global__ void pairs_kernel(Fault fault, const float* x, float* out, int64_t n) {
  __shared__ float mine[kThreads];
  const unsigned t = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * kThreads + t;
  if (fault != Fault::extra_block && i >= n) return;
  if (fault != Fault::unwritten || t != 7) mine[t] = x[i];
  if (fault == Fault::lone_barrier && t >= kThreads / 2) return;
  if (fault != Fault::no_barrier) __syncthreads();
  const float sum = mine[t] + mine[t ^ 1];
  if (fault == Fault::between_blocks) {
    if (t == 0) out[0] += sum;
    return;
  }
  out[fault == Fault::one_too_far ? i + 1 : i] = sum;
}

__global__ void mirror_kernel(Fault fault, const float* x, float* out, int64_t n) {
  __shared__ float mine[kThreads];
  float* const room = reinterpret_cast<float*>(kernels::dynamic_shared());
  const int64_t t = threadIdx.x;
  if (t < n) room[fault == Fault::beyond_room ? t + 1 : t] = x[t];
  __syncthreads();
  if (t < n) mine[fault == Fault::beyond_array ? t + kThreads - n + 1 : t] = room[n - 1 - t];
  __syncthreads();
  if (t < n) out[t] = mine[t];
}

__global__ void pack_kernel(Fault fault, const float* x, float* out) {
  using kernels::load_pack, kernels::store_pack;
  if (threadIdx.x == 0) store_pack(out, load_pack(fault == Fault::unaligned ? x + 1 : x));
}

__global__ void tiles_kernel(Fault fault, const uint16_t* x, float* out) {
  namespace wmma = nvcuda::wmma;
  constexpr unsigned kSide = 16, kLeading = 24;
  __shared__ __align__(32) uint16_t room[2 * kSide * kLeading];
  __shared__ __align__(32) float sums[kSide * kSide];
  for (unsigned i = threadIdx.x; i < 2 * kSide * kLeading; i += 32)
    room[i] = i % kLeading < kSide ? x[i / kLeading % kSide * kSide + i % kLeading] : uint16_t{0};
  __syncwarp();
  if (fault == Fault::tile_warp && threadIdx.x == 31) return;
  const bool beside = fault == Fault::tile_between || (fault == Fault::tile_lane && threadIdx.x == 7);
  const auto* const tile = reinterpret_cast<const __half*>(room) + (beside ? 8 : 0);
  const unsigned leading = fault == Fault::tile_rows ? 20 : kLeading;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0F);
  wmma::load_matrix_sync(left, tile, leading);
  wmma::load_matrix_sync(right, tile, leading);
  wmma::mma_sync(sum, left, right, sum);
  wmma::store_matrix_sync(sums, sum, kSide, wmma::mem_row_major);
  if (fault != Fault::tile_at_once) __syncwarp();
  for (unsigned i = threadIdx.x; i < kSide * kSide; i += 32) out[i] = sums[i];
}

__global__ void rows_kernel(Fault fault, uint16_t* x, int64_t rows, int64_t stride) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const int64_t at =
      fault == Fault::narrow_stride ? static_cast<int32_t>(static_cast<uint32_t>(row * stride)) : row * stride;
  x[at] = static_cast<uint16_t>(row);
}

}  // namespace

void planted_pairs(Fault fault, const float* x, float* out, int64_t n) {
  const auto blocks = static_cast<unsigned>(n / kThreads + (fault == Fault::extra_block ? 1 : 0));
  kernels::launch_kernel("planted_pairs", pairs_kernel, kernels::Grid{blocks, kThreads, 0, nullptr}, fault, x, out,
                         n);
}

void planted_mirror(Fault fault, const float* x, float* out, int64_t n) {
  const auto bytes = static_cast<unsigned>(n * static_cast<int64_t>(sizeof(float)));
  kernels::launch_kernel("planted_mirror", mirror_kernel, kernels::Grid{1, kThreads, bytes, nullptr}, fault, x, out,
                         n);
}

void planted_pack(Fault fault, const float* x, float* out) {
  kernels::launch_kernel("planted_pack", pack_kernel, kernels::Grid{1, kThreads, 0, nullptr}, fault, x, out);
}

void planted_tiles(Fault fault, const uint16_t* x, float* out) {
  kernels::launch_kernel("planted_tiles", tiles_kernel, kernels::Grid{1, 32, 0, nullptr}, fault, x, out);
}

void planted_rows(Fault fault, uint16_t* x, int64_t rows, int64_t stride) {
  kernels::launch_kernel("planted_rows", rows_kernel, kernels::Grid{kernels::blocks_for(rows), kThreads, 0, nullptr},
                         fault, x, rows, stride);
}

}  // namespace metroplex::kernels_on_host

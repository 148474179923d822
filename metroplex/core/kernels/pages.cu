// One thread block allocates and frees pages. Each block copies a row, in 16-byte accesses if all addresses permit
// it, else in 2-byte accesses.
#include "kernels/launch.h"
#include "kernels/pages.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {
namespace {

__global__ void __launch_bounds__(kThreads) take_kernel(PageTake take, PageShape shape) {
  __shared__ PagesTaken taken;
  __shared__ int32_t before, before_on_host;
  if (threadIdx.x == 0) {
    taken = pages_to_take(take, shape);
    before = take.state[kTakenPages];
    before_on_host = take.state[kTakenHostPages];
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < taken.on_device + taken.on_host; i += kThreads) {
    const int64_t place = place_of_page(i, taken.on_device, before, before_on_host, shape);
    take.lease[kLeaseWords + i] = take.state[kPageWords + place] + static_cast<int32_t>(place);
  }
  if (threadIdx.x > 0) return;
  take.lease[kLeaseRows] = taken.rows;
  take.lease[kLeaseWanted] = taken.wanted;
  take.lease[kLeaseOnHost] = taken.on_host;
  take.state[kTakenPages] = before + taken.on_device;
  take.state[kTakenHostPages] = before_on_host + taken.on_host;
  const int32_t wanted = take.state[kWantedPages] += taken.wanted;
  if (wanted > take.state[kMostWanted]) take.state[kMostWanted] = wanted;
  if (taken.on_device + taken.on_host == taken.wanted) return;
  *take.flag = 1;
  if (take.state[kShortLayer] == 0) take.state[kShortLayer] = take.layer;
}

__global__ void __launch_bounds__(kThreads) give_kernel(const int32_t* lease, int32_t* state, PageShape shape) {
  __shared__ int32_t taken, taken_on_host;
  const auto pages = static_cast<int32_t>(shape.pages_of(lease[kLeaseRows]));
  const int32_t on_device = pages - lease[kLeaseOnHost];
  if (threadIdx.x == 0) {
    taken = state[kTakenPages] -= on_device;
    taken_on_host = state[kTakenHostPages] -= lease[kLeaseOnHost];
    state[kWantedPages] -= lease[kLeaseWanted];
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < pages; i += kThreads) {
    const int64_t place = place_of_page(i, on_device, taken, taken_on_host, shape);
    state[kPageWords + place] = lease[kLeaseWords + i] - static_cast<int32_t>(place);
  }
}

template <class T>
__device__ void copy_row(const void* from, void* to, int64_t bytes) {
  for (int64_t i = threadIdx.x; i < bytes / static_cast<int64_t>(sizeof(T)); i += kThreads) {
    if constexpr (sizeof(T) == kWideBytes) {
      store_pack(static_cast<uint32_t*>(to) + 4 * i, load_pack(static_cast<const uint32_t*>(from) + 4 * i));
    } else {
      static_cast<T*>(to)[i] = static_cast<const T*>(from)[i];
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    to_pages_kernel(const unsigned char* from, PagedRows pages, PageShape shape) {
  const int64_t rows = pages.leased();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
    copy_row<T>(from + row * pages.width, pages.at(row, shape), pages.width);
}

template <class T>
__global__ void __launch_bounds__(kThreads) from_pages_kernel(PagedRows pages, unsigned char* to, PageShape shape) {
  const int64_t rows = pages.leased();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
    copy_row<T>(pages.at(row, shape), to + row * pages.width, pages.width);
}

bool in_packs(const void* rows, const PagedRows& pages, const PageShape& shape) {
  const int64_t sizes = pages.width | pages.offset | pages.page_bytes | (shape.page_rows * pages.width);
  return sizes % kWideBytes == 0 && aligned_for_packs(rows, pages.device, pages.host);
}

Grid make_grid(const PagedRows& pages, CUstream_st* stream) {
  return {blocks_for(pages.rows * kThreads), kThreads, 0, stream};
}

}  // namespace

void take_pages_cuda(const PageTake& take, const PageShape& shape, CUstream_st* stream) {
  launch_kernel("take_pages", take_kernel, Grid{1, kThreads, 0, stream}, take, shape);
}

void give_pages_cuda(const int32_t* lease, int32_t* state, const PageShape& shape, CUstream_st* stream) {
  launch_kernel("give_pages", give_kernel, Grid{1, kThreads, 0, stream}, lease, state, shape);
}

void rows_to_pages_cuda(const void* from, const PagedRows& pages, const PageShape& shape, CUstream_st* stream) {
  if (pages.rows == 0) return;
  const auto kernel = in_packs(from, pages, shape) ? to_pages_kernel<uint4> : to_pages_kernel<uint16_t>;
  launch_kernel("rows_to_pages", kernel, make_grid(pages, stream), static_cast<const unsigned char*>(from), pages,
                shape);
}

void rows_from_pages_cuda(const PagedRows& pages, void* to, const PageShape& shape, CUstream_st* stream) {
  if (pages.rows == 0) return;
  const auto kernel = in_packs(to, pages, shape) ? from_pages_kernel<uint4> : from_pages_kernel<uint16_t>;
  launch_kernel("rows_from_pages", kernel, make_grid(pages, stream), pages, static_cast<unsigned char*>(to), shape);
}

}  // namespace metroplex::kernels

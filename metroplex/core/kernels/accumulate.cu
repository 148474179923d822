#include "kernels/accumulate.h"
#include "kernels/launch.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {
namespace {

template <int64_t count, class T>
__device__ void add_at(float* out, const T* x, bool adds) {
  Elements<T, count> sum;
  Elements<float, count> before;
  sum.read(x);
  if (adds) {
    before.read(out);
    for (int64_t i = 0; i < count; ++i) sum.values[i] += before.values[i];
  }
  for (int64_t i = 0; i < count; ++i) before.values[i] = sum.values[i];
  before.write(out);
}

template <int64_t count, class T>
__global__ void __launch_bounds__(kThreads) add_kernel(float* out, const T* x, int64_t n, bool adds) {
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t item = first; item < n / count; item += stride)
    add_at<count>(out + item * count, x + item * count, adds);
  const int64_t behind = n / count * count + first;
  if (behind < n) add_at<1>(out + behind, x + behind, adds);
}

}  // namespace

template <class T>
void add_elements_cuda(float* out, const T* x, int64_t n, bool adds, CUstream_st* stream) {
  if (n == 0) return;
  constexpr int64_t kPack = Pack<T>::kCount;
  const bool packs = aligned_for_packs(out, x);
  const Grid grid{blocks_for(packs ? (n + kPack - 1) / kPack : n), kThreads, 0, stream};
  launch_kernel("add_elements", packs ? add_kernel<kPack, T> : add_kernel<1, T>, grid, out, x, n, adds);
}

#define MPX_INSTANTIATE(T) template void add_elements_cuda<T>(float*, const T*, int64_t, bool, CUstream_st*)
MPX_INSTANTIATE(Bf16);
MPX_INSTANTIATE(F16);

}  // namespace metroplex::kernels

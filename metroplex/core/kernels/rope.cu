#include "kernels/launch.h"
#include "kernels/rope.h"
#include "kernels/rope_device.h"

namespace metroplex::kernels {
namespace {

// An item is `count` adjacent dimensions of a head (1 if interleaved) and their pair partners.
template <int64_t count, class T>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(T* x, const Wide<T>* cos, const Wide<T>* sin, Wide<T> sign, RopeShape shape) {
  const int64_t half = shape.rotary / 2, of_half = half / count,
                items = shape.sequence * shape.batch * shape.heads * of_half;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < items; item += stride) {
    const auto [of_heads, pack] = divided(item, of_half);
    const auto [of_samples, head] = divided(of_heads, shape.heads);
    const auto [row, b] = divided(of_samples, shape.batch);
    const int64_t angle = row * half + pack * count;
    T* low = x + row * shape.stride_s + b * shape.stride_b + head * shape.stride_head + pack * count * shape.step();
    rotate_elements<count>(static_cast<const T*>(low), low, shape.apart(), cos + angle, sin + angle, sign);
  }
}

template <class T>
bool packs_fit(const T* x, const Wide<T>* cos, const Wide<T>* sin, const RopeShape& shape) {
  constexpr int64_t kPack = Pack<T>::kCount;
  return !shape.interleaved && shape.rotary / 2 % kPack == 0 && shape.stride_s % kPack == 0 &&
         shape.stride_b % kPack == 0 && shape.stride_head % kPack == 0 && aligned_for_packs(x, cos, sin);
}

}  // namespace

template <class T>
void rope_cuda(T* x, const Wide<T>* cos, const Wide<T>* sin, int direction, const RopeShape& shape,
               CUstream_st* stream) {
  const int64_t items = shape.sequence * shape.batch * shape.heads * (shape.rotary / 2);
  if (items == 0) return;
  const auto sign = static_cast<Wide<T>>(direction);
  if (packs_fit(x, cos, sin, shape)) {
    constexpr int64_t kPack = Pack<T>::kCount;
    launch_kernel("rope", rope_kernel<kPack, T>, Grid{blocks_for(items / kPack), kThreads, 0, stream}, x, cos, sin,
                  sign, shape);
  } else {
    launch_kernel("rope", rope_kernel<1, T>, Grid{blocks_for(items), kThreads, 0, stream}, x, cos, sin, sign, shape);
  }
}

#define MPX_INSTANTIATE(T) \
  template void rope_cuda<T>(T*, const Wide<T>*, const Wide<T>*, int, const RopeShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels

#include "cuda/kernels/launch.h"
#include "cuda/kernels/rope.h"

namespace metroplex::cuda::kernels {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(T* x, const Wide<T>* cos, const Wide<T>* sin, Wide<T> sign, RopeShape s) {
  const int64_t half = s.rotary / 2, items = s.sequence * s.batch * s.heads * half;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < items; item += stride) {
    const int64_t i = item % half, head = item / half % s.heads, b = item / half / s.heads % s.batch,
                  row = item / half / s.heads / s.batch;
    T* low = x + row * s.stride_s + b * s.stride_b + head * s.stride_head + i;
    const Wide<T> a = load(low[0]), c = load(low[half]);
    const Wide<T> across = cos[row * half + i], turn = sign * sin[row * half + i];
    low[0] = store<T>(a * across - c * turn);
    low[half] = store<T>(c * across + a * turn);
  }
}

}  // namespace

template <class T>
void rope_cuda(T* x, const Wide<T>* cos, const Wide<T>* sin, int direction, const RopeShape& shape,
               CUstream_st* stream) {
  const int64_t items = shape.sequence * shape.batch * shape.heads * (shape.rotary / 2);
  if (items == 0) return;
  launch_kernel("rope", rope_kernel<T>, Grid{blocks_for(items), kThreads, 0, stream}, x, cos, sin,
                static_cast<Wide<T>>(direction), shape);
}

#define MPX_INSTANTIATE(T) \
  template void rope_cuda<T>(T*, const Wide<T>*, const Wide<T>*, int, const RopeShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels

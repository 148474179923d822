#include "cuda/kernels/activation_math.h"
#include "cuda/kernels/launch.h"

namespace metroplex::cuda::kernels {
namespace {

struct Math {
  static __host__ __device__ float exp(float x) { return ::expf(x); }
  static __host__ __device__ double exp(double x) { return ::exp(x); }
  static __host__ __device__ float tanh(float x) { return ::tanhf(x); }
  static __host__ __device__ double tanh(double x) { return ::tanh(x); }
  static __host__ __device__ float erf(float x) { return ::erff(x); }
  static __host__ __device__ double erf(double x) { return ::erf(x); }
};

template <class T>
struct Operands {
  T* x;
  const Wide<T>* bias;
  const T* dy;
  T* out;  // dx in backward
};

template <class T>
__device__ Wide<T> with_bias(const Operands<T>& o, int64_t at, int64_t column) {
  return o.bias != nullptr ? load(o.x[at]) + o.bias[column] : load(o.x[at]);
}

template <Activation kind, class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(Operands<T> o, int64_t rows, int64_t width, bool gated) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < rows * width; item += stride) {
    const int64_t column = item % width, at = gated ? item / width * 2 * width + column : item;
    const Wide<T> x = with_bias(o, at, column);
    Wide<T> y = activation_value<kind, Math>(x);
    if constexpr (!kIsHalf<T>) o.x[at] = x;
    if (gated) {
      const Wide<T> up = with_bias(o, at + width, column + width);
      if constexpr (!kIsHalf<T>) o.x[at + width] = up;
      y *= up;
    }
    o.out[item] = store<T>(y);
  }
}

template <Activation kind, class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(Operands<T> o, int64_t rows, int64_t width, bool gated) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < rows * width; item += stride) {
    const int64_t column = item % width, at = gated ? item / width * 2 * width + column : item;
    const Wide<T> dy = load(o.dy[item]), x = with_bias(o, at, column);
    if (gated) {
      o.out[at] = store<T>(dy * with_bias(o, at + width, column + width) * activation_slope<kind, Math>(x));
      o.out[at + width] = store<T>(dy * activation_value<kind, Math>(x));
    } else {
      o.out[at] = store<T>(dy * activation_slope<kind, Math>(x));
    }
  }
}

template <Activation kind, class T>
void launch(const Operands<T>& o, const ActivationShape& s, CUstream_st* stream) {
  const unsigned blocks = blocks_for(s.rows * s.width);
  if (o.dy == nullptr) {
    launch_kernel("activation_forward", forward_kernel<kind, T>, Grid{blocks, kThreads, 0, stream}, o, s.rows,
                  s.width, s.gated);
  } else {
    launch_kernel("activation_backward", backward_kernel<kind, T>, Grid{blocks, kThreads, 0, stream}, o, s.rows,
                  s.width, s.gated);
  }
}

template <class T>
void dispatch(const Operands<T>& o, const ActivationShape& s, CUstream_st* stream) {
  if (s.rows == 0 || s.width == 0) return;
  switch (s.kind) {
    case Activation::gelu:
      launch<Activation::gelu>(o, s, stream);
      break;
    case Activation::gelu_tanh:
      launch<Activation::gelu_tanh>(o, s, stream);
      break;
    case Activation::quick_gelu:
      launch<Activation::quick_gelu>(o, s, stream);
      break;
    case Activation::silu:
      launch<Activation::silu>(o, s, stream);
      break;
    case Activation::relu:
      launch<Activation::relu>(o, s, stream);
      break;
    case Activation::squared_relu:
      launch<Activation::squared_relu>(o, s, stream);
      break;
  }
}

}  // namespace

template <class T>
void activation_forward_cuda(T* x, const Wide<T>* bias, T* out, const ActivationShape& shape, CUstream_st* stream) {
  dispatch<T>({x, bias, nullptr, out}, shape, stream);
}

template <class T>
void activation_backward_cuda(const T* dy, const T* x, const Wide<T>* bias, T* dx, const ActivationShape& shape,
                              CUstream_st* stream) {
  dispatch<T>({const_cast<T*>(x), bias, dy, dx}, shape, stream);
}

#define MPX_INSTANTIATE(T)                                                                                  \
  template void activation_forward_cuda<T>(T*, const Wide<T>*, T*, const ActivationShape&, CUstream_st*);   \
  template void activation_backward_cuda<T>(const T*, const T*, const Wide<T>*, T*, const ActivationShape&, \
                                            CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels

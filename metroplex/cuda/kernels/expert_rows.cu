// A block of threads takes a row at a time; sums over it are made by all threads in a fixed order.
#include "cuda/kernels/activation.h"
#include "cuda/kernels/expert_rows.h"
#include "cuda/kernels/launch.h"

namespace metroplex::cuda::kernels {
namespace {

struct Math {
  static __device__ float exp(float x) { return ::expf(x); }
  static __device__ double exp(double x) { return ::exp(x); }
  static __device__ float tanh(float x) { return ::tanhf(x); }
  static __device__ double tanh(double x) { return ::tanh(x); }
  static __device__ float erf(float x) { return ::erff(x); }
  static __device__ double erf(double x) { return ::erf(x); }
};

// Where the rows of experts begin, walked forward: an expert's counts beyond the room are cut.
struct Walk {
  const int64_t* counts;
  int64_t experts, rows;
  int64_t expert = -1, begin = 0, end = 0;

  __device__ bool next() {
    if (++expert >= experts) return false;
    const int64_t left = rows - end, count = counts[expert] < left ? counts[expert] : left;
    begin = end;
    end += count > 0 ? count : 0;
    return true;
  }
  __device__ bool reaches(int64_t row) {
    while (row >= end) {
      if (!next()) return false;
    }
    return true;
  }
};

// body(row, expert) by whole blocks.
template <class Body>
__global__ void __launch_bounds__(kThreads) rows_kernel(const int64_t* counts, ExpertShape shape, Body body) {
  Walk walk{counts, shape.experts, shape.rows};
  for (int64_t row = blockIdx.x; walk.reaches(row); row += gridDim.x) body(row, walk.expert);
}

template <class Body>
void launch_rows(const char* name, const int64_t* counts, const ExpertShape& shape, const Body& body,
                 CUstream_st* stream) {
  if (shape.rows == 0 || shape.experts == 0 || shape.width == 0) return;
  launch_kernel(name, rows_kernel<Body>, Grid{blocks_for_rows(shape.rows), kThreads, 0, stream}, counts, shape, body);
}

template <class T>
__device__ Wide<T> prob_of(const Wide<T>* probs, int64_t row) {
  return probs != nullptr ? probs[row] : Wide<T>(1);
}
template <class T>
__device__ Wide<T> biased(const T* x, const T* bias, int64_t i) {
  return bias != nullptr ? load(x[i]) + load(bias[i]) : load(x[i]);
}

template <Activation kind, class T>
struct Forward {
  const T *x, *bias;
  const Wide<T>* probs;
  T* out;
  int64_t width;
  bool gated;
  UnitLimits limits;

  __device__ void operator()(int64_t row, int64_t expert) const {
    const int64_t wide = gated ? 2 * width : width;
    const T *from = x + row * wide, *add = bias != nullptr ? bias + expert * wide : nullptr;
    const Wide<T> prob = prob_of<T>(probs, row);
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      const Wide<T> y = activation_value<kind, Math>(limits.gate(biased(from, add, i)));
      out[row * width + i] = store<T>((gated ? y * limits.up(biased(from, add, width + i)) : y) * prob);
    }
  }
};

template <Activation kind, class T>
struct Backward {
  ExpertActivationGradient<T> g;
  int64_t width;
  bool gated;
  UnitLimits limits;

  __device__ void operator()(int64_t row, int64_t expert) const {
    const int64_t wide = gated ? 2 * width : width;
    const T *x = g.x + row * wide, *bias = g.bias != nullptr ? g.bias + expert * wide : nullptr;
    T* const dx = g.dx + row * wide;
    const Wide<T> prob = prob_of<T>(g.probs, row);
    Wide<T> sum = 0;
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      const Wide<T> given = biased(x, bias, i), a = limits.gate(given), dy = load(g.dy[row * width + i]);
      const Wide<T> y = activation_value<kind, Math>(a), slope = activation_slope<kind, Math>(a);
      if (gated) {
        const Wide<T> raw = biased(x, bias, width + i), up = limits.up(raw);
        dx[i] = store<T>(dy * prob * up * slope * limits.gate_slope(given));
        dx[width + i] = store<T>(dy * prob * y * limits.up_slope(raw));
        sum += dy * y * up;
      } else {
        dx[i] = store<T>(dy * prob * slope);
        sum += dy * y;
      }
    }
    if (g.dprobs == nullptr) return;
    sum = block_reduce(sum, Add());
    if (threadIdx.x == 0) g.dprobs[row] = sum;
  }
};

template <class T>
struct AddBias {
  T* y;
  const T* bias;
  const Wide<T>* probs;
  int64_t width;

  __device__ void operator()(int64_t row, int64_t expert) const {
    const Wide<T> prob = prob_of<T>(probs, row);
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      y[row * width + i] = store<T>(load(y[row * width + i]) + load(bias[expert * width + i]) * prob);
    }
  }
};

template <class T>
struct BiasProbs {
  const T *dy, *bias;
  Wide<T>* dprobs;
  int64_t width;

  __device__ void operator()(int64_t row, int64_t expert) const {
    Wide<T> sum = 0;
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      sum += load(dy[row * width + i]) * load(bias[expert * width + i]);
    }
    sum = block_reduce(sum, Add());
    if (threadIdx.x == 0) dprobs[row] += sum;
  }
};

template <class T>
struct Scale {
  const T* x;
  const Wide<T>* probs;
  T* out;
  int64_t width;

  __device__ void operator()(int64_t row, int64_t) const {
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      out[row * width + i] = store<T>(load(x[row * width + i]) * probs[row]);
    }
  }
};

template <class T>
struct ScaleBackward {
  ExpertActivationGradient<T> g;
  int64_t width;

  __device__ void operator()(int64_t row, int64_t) const {
    Wide<T> sum = 0;
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      const Wide<T> dy = load(g.dy[row * width + i]);
      sum += dy * load(g.x[row * width + i]);
      g.dx[row * width + i] = store<T>(dy * g.probs[row]);
    }
    sum = block_reduce(sum, Add());
    if (threadIdx.x == 0) g.dprobs[row] = sum;
  }
};

// A thread a column of one expert.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sums_kernel(const T* x, const Wide<T>* probs, const int64_t* counts, Wide<T>* sums, ExpertShape shape) {
  Walk walk{counts, shape.experts, shape.rows};
  while (walk.expert < static_cast<int64_t>(blockIdx.y)) walk.next();
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= shape.width) return;
  Wide<T> sum = sums[walk.expert * shape.width + column];
  for (int64_t row = walk.begin; row < walk.end; ++row) {
    sum += load(x[row * shape.width + column]) * prob_of<T>(probs, row);
  }
  sums[walk.expert * shape.width + column] = sum;
}

#define MPX_BY_KIND(call)             \
  switch (shape.kind) {               \
    case Activation::gelu:            \
      call(Activation::gelu);         \
      break;                          \
    case Activation::gelu_tanh:       \
      call(Activation::gelu_tanh);    \
      break;                          \
    case Activation::quick_gelu:      \
      call(Activation::quick_gelu);   \
      break;                          \
    case Activation::silu:            \
      call(Activation::silu);         \
      break;                          \
    case Activation::relu:            \
      call(Activation::relu);         \
      break;                          \
    case Activation::squared_relu:    \
      call(Activation::squared_relu); \
      break;                          \
  }

}  // namespace

template <class T>
void expert_activation_cuda(const T* x, const T* bias, const Wide<T>* probs, const int64_t* counts, T* out,
                            const ExpertShape& shape, CUstream_st* stream) {
#define MPX_CALL(kind)                            \
  launch_rows("expert_activation", counts, shape, \
              Forward<kind, T>{x, bias, probs, out, shape.width, shape.gated, shape.limits}, stream)
  MPX_BY_KIND(MPX_CALL)
#undef MPX_CALL
}

template <class T>
void expert_activation_backward_cuda(const ExpertActivationGradient<T>& g, const int64_t* counts,
                                     const ExpertShape& shape, CUstream_st* stream) {
#define MPX_CALL(kind)                                     \
  launch_rows("expert_activation_backward", counts, shape, \
              Backward<kind, T>{g, shape.width, shape.gated, shape.limits}, stream)
  MPX_BY_KIND(MPX_CALL)
#undef MPX_CALL
}

template <class T>
void expert_bias_cuda(T* y, const T* bias, const Wide<T>* probs, const int64_t* counts, const ExpertShape& shape,
                      CUstream_st* stream) {
  launch_rows("expert_bias", counts, shape, AddBias<T>{y, bias, probs, shape.width}, stream);
}
template <class T>
void expert_bias_probs_cuda(const T* dy, const T* bias, const int64_t* counts, Wide<T>* dprobs,
                            const ExpertShape& shape, CUstream_st* stream) {
  launch_rows("expert_bias_probs", counts, shape, BiasProbs<T>{dy, bias, dprobs, shape.width}, stream);
}
template <class T>
void expert_sums_cuda(const T* x, const Wide<T>* probs, const int64_t* counts, Wide<T>* sums,
                      const ExpertShape& shape, CUstream_st* stream) {
  if (shape.rows == 0 || shape.experts == 0 || shape.width == 0) return;
  const dim3 grid(static_cast<unsigned>((shape.width + kThreads - 1) / kThreads),
                  static_cast<unsigned>(shape.experts));
  launch_kernel("expert_sums", sums_kernel<T>, Grid{grid, kThreads, 0, stream}, x, probs, counts, sums, shape);
}
template <class T>
void expert_scale_cuda(const T* x, const Wide<T>* probs, const int64_t* counts, T* out, const ExpertShape& shape,
                       CUstream_st* stream) {
  launch_rows("expert_scale", counts, shape, Scale<T>{x, probs, out, shape.width}, stream);
}
template <class T>
void expert_scale_backward_cuda(const ExpertActivationGradient<T>& g, const int64_t* counts, const ExpertShape& shape,
                                CUstream_st* stream) {
  launch_rows("expert_scale_backward", counts, shape, ScaleBackward<T>{g, shape.width}, stream);
}

#define MPX_INSTANTIATE(T)                                                                                           \
  template void expert_activation_cuda<T>(const T*, const T*, const Wide<T>*, const int64_t*, T*,                    \
                                          const ExpertShape&, CUstream_st*);                                         \
  template void expert_activation_backward_cuda<T>(const ExpertActivationGradient<T>&, const int64_t*,               \
                                                   const ExpertShape&, CUstream_st*);                                \
  template void expert_bias_cuda<T>(T*, const T*, const Wide<T>*, const int64_t*, const ExpertShape&, CUstream_st*); \
  template void expert_bias_probs_cuda<T>(const T*, const T*, const int64_t*, Wide<T>*, const ExpertShape&,          \
                                          CUstream_st*);                                                             \
  template void expert_sums_cuda<T>(const T*, const Wide<T>*, const int64_t*, Wide<T>*, const ExpertShape&,          \
                                    CUstream_st*);                                                                   \
  template void expert_scale_cuda<T>(const T*, const Wide<T>*, const int64_t*, T*, const ExpertShape&,               \
                                     CUstream_st*);                                                                  \
  template void expert_scale_backward_cuda<T>(const ExpertActivationGradient<T>&, const int64_t*,                    \
                                              const ExpertShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels

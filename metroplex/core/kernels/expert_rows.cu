// A thread block processes one row at a time, with `n` adjacent elements per thread and access. Sums over the row are
// computed by all threads in a fixed order.
#include <type_traits>

#include "kernels/activation.h"
#include "kernels/activation_kinds.h"
#include "kernels/expert_rows.h"
#include "kernels/group_walk.h"
#include "kernels/launch.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {
namespace {

// Calls body(row, expert) with whole thread blocks.
template <class Body>
__global__ void __launch_bounds__(kThreads) rows_kernel(const int64_t* counts, ExpertShape shape, Body body) {
  GroupWalk walk{counts, shape.experts, shape.rows};
  for (int64_t row = blockIdx.x; walk.reaches(row); row += gridDim.x) body(row, walk.group);
}

template <class Body>
void launch_rows(const char* name, const int64_t* counts, const ExpertShape& shape, const Body& body,
                 CUstream_st* stream) {
  if (shape.rows == 0 || shape.experts == 0 || shape.width == 0) return;
  launch_kernel(name, rows_kernel<Body>, Grid{blocks_for_rows(shape.rows), kThreads, 0, stream}, counts, shape, body);
}

template <class T>
__device__ Wide<T> row_prob(const Wide<T>* probs, int64_t row) {
  return probs != nullptr ? probs[row] : Wide<T>(1);
}
template <int64_t n, class T>
__device__ Elements<T, n> elements_at(const T* x, int64_t i) {
  Elements<T, n> out;
  out.read(x + i);
  return out;
}
template <int64_t n, class T>
__device__ Elements<T, n> biased(const T* x, const T* bias, int64_t i) {
  Elements<T, n> out = elements_at<n>(x, i);
  if (bias == nullptr) return out;
  const Elements<T, n> add = elements_at<n>(bias, i);
  for (int64_t k = 0; k < n; ++k) out.values[k] += add.values[k];
  return out;
}

// Calls body(i) for the first of every n elements of a row that this thread processes.
template <int64_t n, class Body>
__device__ void over_row(int64_t width, const Body& body) {
  for (int64_t i = threadIdx.x * n; i < width; i += kThreads * n) body(i);
}

template <Activation kind, class T, int64_t n>
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
    const Wide<T> prob = row_prob<T>(probs, row);
    over_row<n>(width, [&](int64_t i) {
      Elements<T, n> y = biased<n>(from, add, i);
      for (int64_t k = 0; k < n; ++k) y.values[k] = activation_value<kind, DeviceMath>(limits.gate(y.values[k]));
      if (gated) {
        const Elements<T, n> up = biased<n>(from, add, width + i);
        for (int64_t k = 0; k < n; ++k) y.values[k] *= limits.up(up.values[k]);
      }
      for (int64_t k = 0; k < n; ++k) y.values[k] *= prob;
      y.write(out + row * width + i);
    });
  }
};

template <Activation kind, class T, int64_t n>
struct Backward {
  ExpertActivationGradient<T> g;
  int64_t width;
  bool gated;
  UnitLimits limits;

  __device__ void operator()(int64_t row, int64_t expert) const {
    const int64_t wide = gated ? 2 * width : width;
    const T *x = g.x + row * wide, *bias = g.bias != nullptr ? g.bias + expert * wide : nullptr;
    T* const dx = g.dx + row * wide;
    const Wide<T> prob = row_prob<T>(g.probs, row);
    Wide<T> sum = 0;
    over_row<n>(width, [&](int64_t i) {
      const Elements<T, n> given = biased<n>(x, bias, i), dy = elements_at<n>(g.dy, row * width + i);
      Elements<T, n> raw, of_gate, of_up;
      if (gated) raw = biased<n>(x, bias, width + i);
      for (int64_t k = 0; k < n; ++k) {
        const Wide<T> wide = limits.gate(given.values[k]), y = activation_value<kind, DeviceMath>(wide),
                      slope = activation_slope<kind, DeviceMath>(wide);
        if (gated) {
          const Wide<T> up = limits.up(raw.values[k]);
          of_gate.values[k] = dy.values[k] * prob * up * slope * limits.gate_slope(given.values[k]);
          of_up.values[k] = dy.values[k] * prob * y * limits.up_slope(raw.values[k]);
          sum += dy.values[k] * y * up;
        } else {
          of_gate.values[k] = dy.values[k] * prob * slope;
          sum += dy.values[k] * y;
        }
      }
      of_gate.write(dx + i);
      if (gated) of_up.write(dx + width + i);
    });
    if (g.dprobs == nullptr) return;
    sum = block_reduce(sum, Add());
    if (threadIdx.x == 0) g.dprobs[row] = sum;
  }
};

template <class T, int64_t n>
struct AddBias {
  T* y;
  const T* bias;
  const Wide<T>* probs;
  int64_t width;

  __device__ void operator()(int64_t row, int64_t expert) const {
    const Wide<T> prob = row_prob<T>(probs, row);
    over_row<n>(width, [&](int64_t i) {
      Elements<T, n> sum = elements_at<n>(static_cast<const T*>(y), row * width + i);
      const Elements<T, n> add = elements_at<n>(bias, expert * width + i);
      for (int64_t k = 0; k < n; ++k) sum.values[k] += add.values[k] * prob;
      sum.write(y + row * width + i);
    });
  }
};

template <class T, int64_t n>
struct BiasProbs {
  const T *dy, *bias;
  Wide<T>* dprobs;
  int64_t width;

  __device__ void operator()(int64_t row, int64_t expert) const {
    Wide<T> sum = 0;
    over_row<n>(width, [&](int64_t i) {
      const Elements<T, n> elements = elements_at<n>(dy, row * width + i),
                           b = elements_at<n>(bias, expert * width + i);
      for (int64_t k = 0; k < n; ++k) sum += elements.values[k] * b.values[k];
    });
    sum = block_reduce(sum, Add());
    if (threadIdx.x == 0) dprobs[row] += sum;
  }
};

template <class T, int64_t n>
struct Scale {
  const T* x;
  const Wide<T>* probs;
  T* out;
  int64_t width;

  __device__ void operator()(int64_t row, int64_t) const {
    const Wide<T> prob = probs[row];
    over_row<n>(width, [&](int64_t i) {
      Elements<T, n> y = elements_at<n>(x, row * width + i);
      for (int64_t k = 0; k < n; ++k) y.values[k] *= prob;
      y.write(out + row * width + i);
    });
  }
};

template <class T, int64_t n>
struct ScaleBackward {
  ExpertActivationGradient<T> g;
  int64_t width;

  __device__ void operator()(int64_t row, int64_t) const {
    const Wide<T> prob = g.probs[row];
    Wide<T> sum = 0;
    over_row<n>(width, [&](int64_t i) {
      Elements<T, n> dy = elements_at<n>(g.dy, row * width + i);
      const Elements<T, n> y = elements_at<n>(g.x, row * width + i);
      for (int64_t k = 0; k < n; ++k) {
        sum += dy.values[k] * y.values[k];
        dy.values[k] *= prob;
      }
      dy.write(g.dx + row * width + i);
    });
    sum = block_reduce(sum, Add());
    if (threadIdx.x == 0) g.dprobs[row] = sum;
  }
};

template <class T, class... Pointers>
bool in_packs(int64_t width, const Pointers*... pointers) {
  return width % Pack<T>::kCount == 0 && aligned_for_packs(pointers...);
}

// Calls launch(n) with the largest possible number of elements per thread and access.
template <class T, class Launch>
void by_packs(bool packs, const Launch& launch) {
  if (packs) launch(std::integral_constant<int64_t, Pack<T>::kCount>{});
  else launch(std::integral_constant<int64_t, 1>{});
}

// Each thread sums a column of one expert.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sums_kernel(const T* x, const Wide<T>* probs, const int64_t* counts, Wide<T>* sums, ExpertShape shape) {
  GroupWalk walk{counts, shape.experts, shape.rows};
  while (walk.group < static_cast<int64_t>(blockIdx.y)) walk.next();
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= shape.width) return;
  Wide<T> sum = sums[walk.group * shape.width + column];
  for (int64_t row = walk.begin; row < walk.end; ++row) {
    sum += load(x[row * shape.width + column]) * row_prob<T>(probs, row);
  }
  sums[walk.group * shape.width + column] = sum;
}

}  // namespace

template <class T>
void expert_activation_cuda(const T* x, const T* bias, const Wide<T>* probs, const int64_t* counts, T* out,
                            const ExpertShape& shape, CUstream_st* stream) {
  by_packs<T>(in_packs<T>(shape.width, x, bias, out), [&](auto n) {
    with_kind(shape.kind, [&]<Activation kind>() {
      launch_rows("expert_activation", counts, shape,
                  Forward<kind, T, decltype(n)::value>{x, bias, probs, out, shape.width, shape.gated, shape.limits},
                  stream);
    });
  });
}

template <class T>
void expert_activation_backward_cuda(const ExpertActivationGradient<T>& g, const int64_t* counts,
                                     const ExpertShape& shape, CUstream_st* stream) {
  by_packs<T>(in_packs<T>(shape.width, g.dy, g.x, g.bias, g.dx), [&](auto n) {
    with_kind(shape.kind, [&]<Activation kind>() {
      launch_rows("expert_activation_backward", counts, shape,
                  Backward<kind, T, decltype(n)::value>{g, shape.width, shape.gated, shape.limits}, stream);
    });
  });
}

template <class T>
void expert_bias_cuda(T* y, const T* bias, const Wide<T>* probs, const int64_t* counts, const ExpertShape& shape,
                      CUstream_st* stream) {
  by_packs<T>(in_packs<T>(shape.width, y, bias), [&](auto n) {
    launch_rows("expert_bias", counts, shape, AddBias<T, decltype(n)::value>{y, bias, probs, shape.width}, stream);
  });
}
template <class T>
void expert_bias_probs_cuda(const T* dy, const T* bias, const int64_t* counts, Wide<T>* dprobs,
                            const ExpertShape& shape, CUstream_st* stream) {
  by_packs<T>(in_packs<T>(shape.width, dy, bias), [&](auto n) {
    launch_rows("expert_bias_probs", counts, shape, BiasProbs<T, decltype(n)::value>{dy, bias, dprobs, shape.width},
                stream);
  });
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
  by_packs<T>(in_packs<T>(shape.width, x, out), [&](auto n) {
    launch_rows("expert_scale", counts, shape, Scale<T, decltype(n)::value>{x, probs, out, shape.width}, stream);
  });
}
template <class T>
void expert_scale_backward_cuda(const ExpertActivationGradient<T>& g, const int64_t* counts, const ExpertShape& shape,
                                CUstream_st* stream) {
  by_packs<T>(in_packs<T>(shape.width, g.dy, g.x, g.dx), [&](auto n) {
    launch_rows("expert_scale_backward", counts, shape, ScaleBackward<T, decltype(n)::value>{g, shape.width}, stream);
  });
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

}  // namespace metroplex::kernels

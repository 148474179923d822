#include <ATen/Parallel.h>

#include <vector>

#include "cuda/kernels/norm.h"
#include "cuda/kernels/vector_math.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::cuda::kernels {
namespace {

// Input is In in forward; the gradient that comes in is Out, the one that goes out In.
template <class In, class Out>
struct Pointers {
  const In* x;
  const Wide<In>*weight, *bias;
  Out* out;
  Wide<In>*mean, *rstd;
  const Out* dy;
  In* dx;
  Wide<In>*dweight, *dbias;  // one line a block
};

template <class In, class Out>
MPX_INLINE void forward_loop(const Pointers<In, Out>& p, const NormShape& s, int64_t begin, int64_t end) {
  using T = Wide<In>;
  for (int64_t row = begin; row < end; ++row) {
    const In* __restrict x = p.x + row * s.width;
    Out* __restrict out = p.out + row * s.width;
    const T* __restrict weight = p.weight;
    const T count = static_cast<T>(s.width);
    const T mean = s.rms ? T(0) : lane_sum<T>(s.width, [&](int64_t i) { return load(x[i]); }) / count;
    const T variance =
        lane_sum<T>(s.width, [&](int64_t i) { return (load(x[i]) - mean) * (load(x[i]) - mean); }) / count;
    const T rstd = T(1) / std::sqrt(variance + static_cast<T>(s.epsilon));
    if (p.bias != nullptr) {
      const T* __restrict bias = p.bias;
      for (int64_t i = 0; i < s.width; ++i) out[i] = store<Out>((load(x[i]) - mean) * rstd * weight[i] + bias[i]);
    } else {
      for (int64_t i = 0; i < s.width; ++i) out[i] = store<Out>((load(x[i]) - mean) * rstd * weight[i]);
    }
    if (!s.rms) p.mean[row] = mean;
    p.rstd[row] = rstd;
  }
}

template <class In, class Out>
MPX_INLINE void backward_block(const Pointers<In, Out>& p, const NormShape& s, int64_t block) {
  using T = Wide<In>;
  const T* __restrict weight = p.weight;
  T* __restrict dweight = p.dweight + block * s.width;
  T* __restrict dbias = p.dbias == nullptr ? nullptr : p.dbias + block * s.width;
  const int64_t end = std::min(s.rows, (block + 1) * kNormBlockRows);
  for (int64_t row = block * kNormBlockRows; row < end; ++row) {
    const Out* __restrict dy = p.dy + row * s.width;
    const In* __restrict x = p.x + row * s.width;
    In* __restrict dx = p.dx + row * s.width;
    const T mean = s.rms ? T(0) : p.mean[row], rstd = p.rstd[row], count = static_cast<T>(s.width);
    const T sum = s.rms ? T(0) : lane_sum<T>(s.width, [&](int64_t i) { return load(dy[i]) * weight[i]; }) / count;
    const T dot =
        lane_sum<T>(s.width, [&](int64_t i) { return load(dy[i]) * weight[i] * ((load(x[i]) - mean) * rstd); }) /
        count;
    for (int64_t i = 0; i < s.width; ++i) {
      const T normal = (load(x[i]) - mean) * rstd;
      dx[i] = store<In>(rstd * (load(dy[i]) * weight[i] - sum - normal * dot));
      dweight[i] += load(dy[i]) * normal;
    }
    if (dbias != nullptr) {
      for (int64_t i = 0; i < s.width; ++i) dbias[i] += load(dy[i]);
    }
  }
}

#define MPX_ROWS(clones, In, Out)                                                                  \
  clones void forward_rows(const Pointers<In, Out>& p, const NormShape& s, int64_t b, int64_t e) { \
    forward_loop(p, s, b, e);                                                                      \
  }                                                                                                \
  clones void backward_rows(const Pointers<In, Out>& p, const NormShape& s, int64_t block) {       \
    backward_block(p, s, block);                                                                   \
  }
MPX_ROWS(MPX_VECTOR_CLONES, float, float)
MPX_ROWS(MPX_VECTOR_CLONES, double, double)
MPX_ROWS(MPX_HALF_CLONES, Bf16, Bf16)
MPX_ROWS(MPX_HALF_CLONES, F16, F16)
MPX_ROWS(MPX_HALF_CLONES, float, Bf16)
MPX_ROWS(MPX_HALF_CLONES, float, F16)
#undef MPX_ROWS

template <class T>
void sum_blocks(const std::vector<T>& blocks, T* out, int64_t width) {
  std::fill(out, out + width, T(0));
  for (size_t at = 0; at < blocks.size(); at += static_cast<size_t>(width)) {
    for (int64_t i = 0; i < width; ++i) out[i] += blocks[at + static_cast<size_t>(i)];
  }
}

}  // namespace

template <class In, class Out>
void norm_forward(const In* x, const Wide<In>* weight, const Wide<In>* bias, Out* out, Wide<In>* mean, Wide<In>* rstd,
                  const NormShape& shape) {
  const Pointers<In, Out> p{x, weight, bias, out, mean, rstd, nullptr, nullptr, nullptr, nullptr};
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.width));
  at::parallel_for(0, shape.rows, grain, [&](int64_t begin, int64_t end) { forward_rows(p, shape, begin, end); });
}

template <class In, class Out>
void norm_backward(const Out* dy, const In* x, const Wide<In>* weight, const Wide<In>* mean, const Wide<In>* rstd,
                   const NormGradients<In>& out, const NormShape& shape) {
  using T = Wide<In>;
  const int64_t blocks = norm_blocks(shape);
  std::vector<T> dweight(static_cast<size_t>(blocks * shape.width)), dbias(out.dbias == nullptr ? 0 : dweight.size());
  const Pointers<In, Out> p{x,
                            weight,
                            nullptr,
                            nullptr,
                            const_cast<T*>(mean),
                            const_cast<T*>(rstd),
                            dy,
                            out.dx,
                            dweight.data(),
                            out.dbias == nullptr ? nullptr : dbias.data()};
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) backward_rows(p, shape, block);
  });
  sum_blocks(dweight, out.dweight, shape.width);
  if (out.dbias != nullptr) sum_blocks(dbias, out.dbias, shape.width);
}

#define MPX_INSTANTIATE(Out, In)                                                                                 \
  template void norm_forward<In, Out>(const In*, const Wide<In>*, const Wide<In>*, Out*, Wide<In>*, Wide<In>*,   \
                                      const NormShape&);                                                         \
  template void norm_backward<In, Out>(const Out*, const In*, const Wide<In>*, const Wide<In>*, const Wide<In>*, \
                                       const NormGradients<In>&, const NormShape&)
MPX_FOR_ELEMENT_PAIRS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels

#include <ATen/Parallel.h>

#include <vector>

#include "cuda/kernels/norm.h"
#include "cuda/kernels/vector_math.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::cuda::kernels {
namespace {

constexpr int64_t kBlockRows = 32;  // rows whose weight gradients are summed together

template <class T>
struct Pointers {
  const T *dy, *x, *weight, *bias;
  T *out, *mean, *rstd;  // out: y in forward, dx in backward
  T *dweight, *dbias;    // one line a block
};

template <class T>
MPX_INLINE void forward_loop(const Pointers<T>& p, const NormShape& s, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* __restrict x = p.x + row * s.width;
    T* __restrict out = p.out + row * s.width;
    const T* __restrict weight = p.weight;
    const T count = static_cast<T>(s.width);
    const T mean = s.rms ? T(0) : lane_sum<T>(s.width, [&](int64_t i) { return x[i]; }) / count;
    const T variance = lane_sum<T>(s.width, [&](int64_t i) { return (x[i] - mean) * (x[i] - mean); }) / count;
    const T rstd = T(1) / std::sqrt(variance + static_cast<T>(s.epsilon));
    if (p.bias != nullptr) {
      const T* __restrict bias = p.bias;
      for (int64_t i = 0; i < s.width; ++i) out[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
    } else {
      for (int64_t i = 0; i < s.width; ++i) out[i] = (x[i] - mean) * rstd * weight[i];
    }
    if (!s.rms) p.mean[row] = mean;
    p.rstd[row] = rstd;
  }
}

template <class T>
MPX_INLINE void backward_block(const Pointers<T>& p, const NormShape& s, int64_t block) {
  const T* __restrict weight = p.weight;
  T* __restrict dweight = p.dweight + block * s.width;
  T* __restrict dbias = p.dbias == nullptr ? nullptr : p.dbias + block * s.width;
  const int64_t end = std::min(s.rows, (block + 1) * kBlockRows);
  for (int64_t row = block * kBlockRows; row < end; ++row) {
    const T* __restrict dy = p.dy + row * s.width;
    const T* __restrict x = p.x + row * s.width;
    T* __restrict dx = p.out + row * s.width;
    const T mean = s.rms ? T(0) : p.mean[row], rstd = p.rstd[row], count = static_cast<T>(s.width);
    const T sum = s.rms ? T(0) : lane_sum<T>(s.width, [&](int64_t i) { return dy[i] * weight[i]; }) / count;
    const T dot = lane_sum<T>(s.width, [&](int64_t i) { return dy[i] * weight[i] * ((x[i] - mean) * rstd); }) / count;
    for (int64_t i = 0; i < s.width; ++i) {
      const T normal = (x[i] - mean) * rstd;
      dx[i] = rstd * (dy[i] * weight[i] - sum - normal * dot);
      dweight[i] += dy[i] * normal;
    }
    if (dbias != nullptr) {
      for (int64_t i = 0; i < s.width; ++i) dbias[i] += dy[i];
    }
  }
}

MPX_VECTOR_CLONES void forward_rows(const Pointers<float>& p, const NormShape& s, int64_t b, int64_t e) {
  forward_loop(p, s, b, e);
}
MPX_VECTOR_CLONES void forward_rows(const Pointers<double>& p, const NormShape& s, int64_t b, int64_t e) {
  forward_loop(p, s, b, e);
}
MPX_VECTOR_CLONES void backward_rows(const Pointers<float>& p, const NormShape& s, int64_t block) {
  backward_block(p, s, block);
}
MPX_VECTOR_CLONES void backward_rows(const Pointers<double>& p, const NormShape& s, int64_t block) {
  backward_block(p, s, block);
}

template <class T>
void sum_blocks(const std::vector<T>& blocks, T* out, int64_t width) {
  std::fill(out, out + width, T(0));
  for (size_t at = 0; at < blocks.size(); at += static_cast<size_t>(width)) {
    for (int64_t i = 0; i < width; ++i) out[i] += blocks[at + static_cast<size_t>(i)];
  }
}

}  // namespace

template <class T>
void norm_forward(const T* x, const T* weight, const T* bias, T* out, T* mean, T* rstd, const NormShape& shape) {
  const Pointers<T> p{nullptr, x, weight, bias, out, mean, rstd, nullptr, nullptr};
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.width));
  at::parallel_for(0, shape.rows, grain, [&](int64_t begin, int64_t end) { forward_rows(p, shape, begin, end); });
}

template <class T>
void norm_backward(const T* dy, const T* x, const T* weight, const T* mean, const T* rstd,
                   const NormGradients<T>& out, const NormShape& shape) {
  const int64_t blocks = (shape.rows + kBlockRows - 1) / kBlockRows;
  std::vector<T> dweight(static_cast<size_t>(blocks * shape.width)), dbias(out.dbias == nullptr ? 0 : dweight.size());
  const Pointers<T> p{dy,
                      x,
                      weight,
                      nullptr,
                      out.dx,
                      const_cast<T*>(mean),
                      const_cast<T*>(rstd),
                      dweight.data(),
                      out.dbias == nullptr ? nullptr : dbias.data()};
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) backward_rows(p, shape, block);
  });
  sum_blocks(dweight, out.dweight, shape.width);
  if (out.dbias != nullptr) sum_blocks(dbias, out.dbias, shape.width);
}

#define MPX_INSTANTIATE(T)                                                                                  \
  template void norm_forward<T>(const T*, const T*, const T*, T*, T*, T*, const NormShape&);                \
  template void norm_backward<T>(const T*, const T*, const T*, const T*, const T*, const NormGradients<T>&, \
                                 const NormShape&)
MPX_INSTANTIATE(float);
MPX_INSTANTIATE(double);

}  // namespace metroplex::cuda::kernels

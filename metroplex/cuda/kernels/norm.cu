#include "cuda/kernels/norm.h"
#include "cuda/kernels/reduce.h"

namespace metroplex::cuda::kernels {
namespace {

// The sum of term(i) over a row, by the whole block.
template <class T, class Term>
__device__ T row_sum(int64_t width, const Term& term) {
  T sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) sum += term(i);
  return block_reduce(sum, Add());
}

template <class In, class Out>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const In* all_x, const Wide<In>* weight, const Wide<In>* bias, Out* all_out, Wide<In>* means,
                   Wide<In>* rstds, NormShape s) {
  using T = Wide<In>;
  const T count = static_cast<T>(s.width);
  for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
    const In* x = all_x + row * s.width;
    Out* out = all_out + row * s.width;
    const T mean = s.rms ? T(0) : row_sum<T>(s.width, [&](int64_t i) { return load(x[i]); }) / count;
    const T variance =
        row_sum<T>(s.width, [&](int64_t i) { return (load(x[i]) - mean) * (load(x[i]) - mean); }) / count;
    const T rstd = T(1) / sqrt(variance + static_cast<T>(s.epsilon));
    for (int64_t i = threadIdx.x; i < s.width; i += blockDim.x) {
      const T scaled = (load(x[i]) - mean) * rstd * weight[i];
      out[i] = store<Out>(bias != nullptr ? scaled + bias[i] : scaled);
    }
    if (threadIdx.x == 0) {
      if (!s.rms) means[row] = mean;
      rstds[row] = rstd;
    }
  }
}

template <class In, class Out>
struct Backward {
  const Out* dy;
  const In* x;
  const Wide<In>*weight, *mean, *rstd;
};

template <class In, class Out>
__global__ void __launch_bounds__(kThreads) dx_kernel(Backward<In, Out> p, In* all_dx, NormShape s) {
  using T = Wide<In>;
  const T count = static_cast<T>(s.width);
  for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
    const Out* dy = p.dy + row * s.width;
    const In* x = p.x + row * s.width;
    In* dx = all_dx + row * s.width;
    const T mean = s.rms ? T(0) : p.mean[row], rstd = p.rstd[row];
    const T sum = s.rms ? T(0) : row_sum<T>(s.width, [&](int64_t i) { return load(dy[i]) * p.weight[i]; }) / count;
    const T dot =
        row_sum<T>(s.width, [&](int64_t i) { return load(dy[i]) * p.weight[i] * ((load(x[i]) - mean) * rstd); }) /
        count;
    for (int64_t i = threadIdx.x; i < s.width; i += blockDim.x) {
      const T normal = (load(x[i]) - mean) * rstd;
      dx[i] = store<In>(rstd * (load(dy[i]) * p.weight[i] - sum - normal * dot));
    }
  }
}

// One thread sums one column of one block of rows: line `block` of `lines` is dweight, then dbias.
template <class In, class Out>
__global__ void __launch_bounds__(kThreads) block_kernel(Backward<In, Out> p, Wide<In>* lines, NormShape s) {
  using T = Wide<In>;
  const int64_t items = norm_blocks(s) * s.width, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < items; item += stride) {
    const int64_t block = item / s.width, i = item % s.width, begin = block * kNormBlockRows;
    const int64_t end = begin + kNormBlockRows < s.rows ? begin + kNormBlockRows : s.rows;
    T dweight = 0, dbias = 0;
    for (int64_t row = begin; row < end; ++row) {
      const T dy = load(p.dy[row * s.width + i]), mean = s.rms ? T(0) : p.mean[row];
      dweight += dy * ((load(p.x[row * s.width + i]) - mean) * p.rstd[row]);
      dbias += dy;
    }
    lines[block * 2 * s.width + i] = dweight;
    lines[(block * 2 + 1) * s.width + i] = dbias;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) sum_kernel(const T* lines, T* dweight, T* dbias, NormShape s) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < s.width; i += stride) {
    T weight = 0, bias = 0;
    for (int64_t block = 0; block < norm_blocks(s); ++block) {
      weight += lines[block * 2 * s.width + i];
      bias += lines[(block * 2 + 1) * s.width + i];
    }
    dweight[i] = weight;
    if (dbias != nullptr) dbias[i] = bias;
  }
}

}  // namespace

template <class In, class Out>
void norm_forward_cuda(const In* x, const Wide<In>* weight, const Wide<In>* bias, Out* out, Wide<In>* mean,
                       Wide<In>* rstd, const NormShape& shape, CUstream_st* stream) {
  if (shape.rows == 0) return;
  forward_kernel<In, Out>
      <<<blocks_for_rows(shape.rows), kThreads, 0, stream>>>(x, weight, bias, out, mean, rstd, shape);
  check_launch("norm_forward");
}

template <class In, class Out>
void norm_backward_cuda(const Out* dy, const In* x, const Wide<In>* weight, const Wide<In>* mean,
                        const Wide<In>* rstd, const NormGradients<In>& out, Wide<In>* blocks, const NormShape& shape,
                        CUstream_st* stream) {
  const Backward<In, Out> operands{dy, x, weight, mean, rstd};
  if (shape.rows > 0) {
    dx_kernel<In, Out><<<blocks_for_rows(shape.rows), kThreads, 0, stream>>>(operands, out.dx, shape);
    check_launch("norm_backward");
    block_kernel<In, Out>
        <<<blocks_for(norm_blocks(shape) * shape.width), kThreads, 0, stream>>>(operands, blocks, shape);
    check_launch("norm_backward");
  }
  sum_kernel<Wide<In>><<<blocks_for(shape.width), kThreads, 0, stream>>>(blocks, out.dweight, out.dbias, shape);
  check_launch("norm_backward");
}

#define MPX_INSTANTIATE(Out, In)                                                                                    \
  template void norm_forward_cuda<In, Out>(const In*, const Wide<In>*, const Wide<In>*, Out*, Wide<In>*, Wide<In>*, \
                                           const NormShape&, CUstream_st*);                                         \
  template void norm_backward_cuda<In, Out>(const Out*, const In*, const Wide<In>*, const Wide<In>*,                \
                                            const Wide<In>*, const NormGradients<In>&, Wide<In>*, const NormShape&, \
                                            CUstream_st*)
MPX_FOR_ELEMENT_PAIRS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels

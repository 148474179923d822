#include "kernels/balance.h"
#include "kernels/route.h"
#include "kernels/launch.h"
#include "kernels/route_math.h"
#include "kernels/row_softmax.h"

namespace metroplex::kernels {
namespace {

// Statistics of a row, computed by a warp; all lanes have the same values.
template <class T>
struct RowSums {
  RowSoftmax<T> all;
  T sum = 1;  // over the scores that depend on a single logit

  __device__ T softmax(T x) const { return exp(x - all.largest) / all.sum; }
  __device__ T logsumexp() const { return all.largest + log(all.sum); }
};

__device__ RouteScore own(BalanceScore score) {
  return score == BalanceScore::sigmoid ? RouteScore::sigmoid : RouteScore::sqrtsoftplus;
}

template <class T>
__device__ RowSums<T> read_row(const T* x, const BalanceShape& shape, unsigned lane) {
  RowSums<T> row;
  if (shape.z || shape.score == BalanceScore::softmax) row.all = row_softmax(x, shape.experts, lane);
  if (shape.score == BalanceScore::none || shape.score == BalanceScore::softmax) return row;
  T sum = 0;
  for (int64_t e = lane; e < shape.experts; e += kWarp) sum += own_score(own(shape.score), x[e]);
  row.sum = warp_reduce(sum, Add()) + static_cast<T>(kLeastSum);
  return row;
}

template <class T>
__device__ T score_share(const RowSums<T>& row, T x, const BalanceShape& shape) {
  return shape.score == BalanceScore::softmax ? row.softmax(x) : own_score(own(shape.score), x) / row.sum;
}

// A block processes a chunk: its warps compute the rows, then its threads the columns of the line.
template <class T>
__global__ void __launch_bounds__(kThreads)
    balance_lines_kernel(BalanceInputs<T> in, double* lines, BalanceShape shape) {
  __shared__ RowSums<T> rows[kBalanceRows];
  const int64_t chunks = balance_chunks(shape), bins = shape.bins(), n = shape.line();
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const int64_t first = chunk * kBalanceRows, left = shape.tokens - first,
                  count = left < kBalanceRows ? left : kBalanceRows;
    __syncthreads();  // waits until the previous chunk's rows have been read
    for (int64_t r = threadIdx.x / kWarp; r < count; r += kWarps) {
      const RowSums<T> row = read_row(in.logits + (first + r) * shape.experts, shape, threadIdx.x % kWarp);
      if (threadIdx.x % kWarp == 0) rows[r] = row;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      double sum = 0;
      if (i == n - 1) {
        for (int64_t r = 0; shape.z && r < count; ++r) sum += rows[r].logsumexp() * rows[r].logsumexp();
      } else {
        const int64_t sample = i % bins / shape.experts, e = i % shape.experts;
        // Rows of one sample are shape.samples apart.
        const int64_t skipped = first % shape.samples, start = (sample + shape.samples - skipped) % shape.samples;
        for (int64_t r = start; r < count; r += shape.samples) {
          const int64_t row = first + r;
          if (i < bins) {
            for (int64_t j = row * shape.chosen; j < (row + 1) * shape.chosen; ++j) sum += in.chosen[j] == e ? 1 : 0;
          } else if (shape.score != BalanceScore::none) {
            sum += score_share(rows[r], in.logits[row * shape.experts + e], shape);
          }
        }
      }
      lines[chunk * n + i] = sum;
    }
  }
}

// The last thread block sums the loss mask.
template <class T>
__global__ void __launch_bounds__(kThreads)
    balance_sums_kernel(const double* lines, const T* mask, double* sums, BalanceShape shape) {
  const int64_t n = shape.line(), chunks = balance_chunks(shape), blocks = gridDim.x - 1;
  if (blockIdx.x == blocks) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < shape.mask; i += kThreads) sum += static_cast<double>(mask[i]);
    sum = block_reduce(sum, Add());
    if (threadIdx.x == 0) sums[n] = sum;
    return;
  }
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += blocks * blockDim.x) {
    double sum = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += lines[chunk * n + i];
    sums[i] = sum;
  }
}

// One thread block.
__global__ void __launch_bounds__(kThreads)
    balance_term_kernel(const double* sums, const double* weight, double* value, double* gradient, BalanceTerm term) {
  const int64_t bins = term.samples * term.experts;
  const double factor = term_factor(term, *weight), of_z = term.kind == BalanceTerm::Kind::z ? factor : 0;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < bins; i += kThreads) {
    gradient[i] = term_tokens(sums, term, i) * factor;
    sum += sums[bins + i] * gradient[i];
  }
  sum = block_reduce(sum, Add());
  if (threadIdx.x > 0) return;
  gradient[bins] = of_z;
  *value = (sum + sums[2 * bins] * of_z) / term.divisor;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    balance_backward_kernel(const T* logits, const double* dsums, const double* scale, T* dlogits,
                            BalanceShape shape) {
  const unsigned lane = threadIdx.x % kWarp;
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  const bool shares = shape.score != BalanceScore::none, softmax = shape.score == BalanceScore::softmax;
  const double factor = scale != nullptr ? *scale : 1;
  const T dz = static_cast<T>(dsums[shape.bins()] * factor);
  for (int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; t < shape.tokens; t += stride) {
    const T* const x = logits + t * shape.experts;
    const double* const dshares = dsums + t % shape.samples * shape.experts;
    const RowSums<T> row = read_row(x, shape, lane);
    T mean = 0;
    for (int64_t e = lane; shares && e < shape.experts; e += kWarp)
      mean += score_share(row, x[e], shape) * static_cast<T>(dshares[e] * factor);
    mean = warp_reduce(mean, Add());
    for (int64_t e = lane; e < shape.experts; e += kWarp) {
      T d = 0;
      if (shares) {
        const T slope = softmax ? row.softmax(x[e])
                                : own_slope(own(shape.score), x[e], own_score(own(shape.score), x[e])) / row.sum;
        d = slope * (static_cast<T>(dshares[e] * factor) - mean);
      }
      dlogits[t * shape.experts + e] = shape.z ? d + dz * T(2) * row.logsumexp() * row.softmax(x[e]) : d;
    }
  }
}

}  // namespace

template <class T>
void balance_forward_cuda(const BalanceInputs<T>& in, double* sums, double* lines, const BalanceShape& shape,
                          CUstream_st* stream) {
  if (shape.tokens > 0) {
    launch_kernel("balance_lines", balance_lines_kernel<T>,
                  Grid{blocks_for(balance_chunks(shape) * kThreads), kThreads, 0, stream}, in, lines, shape);
  }
  launch_kernel("balance_sums", balance_sums_kernel<T>, Grid{blocks_for(shape.line()) + 1, kThreads, 0, stream},
                lines, in.mask, sums, shape);
}

void balance_term_cuda(const double* sums, const double* weight, double* value, double* gradient,
                       const BalanceTerm& term, CUstream_st* stream) {
  launch_kernel("balance_term", balance_term_kernel, Grid{1, kThreads, 0, stream}, sums, weight, value, gradient,
                term);
}

template <class T>
void balance_backward_cuda(const T* logits, const double* dsums, const double* scale, T* dlogits,
                           const BalanceShape& shape, CUstream_st* stream) {
  if (shape.tokens == 0) return;
  launch_kernel("balance_backward", balance_backward_kernel<T>,
                Grid{blocks_for(shape.tokens * kWarp), kThreads, 0, stream}, logits, dsums, scale, dlogits, shape);
}

#define MPX_INSTANTIATE(T)                                                                                \
  template void balance_forward_cuda<T>(const BalanceInputs<T>&, double*, double*, const BalanceShape&,   \
                                        CUstream_st*);                                                    \
  template void balance_backward_cuda<T>(const T*, const double*, const double*, T*, const BalanceShape&, \
                                         CUstream_st*)
MPX_INSTANTIATE(float);
MPX_INSTANTIATE(double);

}  // namespace metroplex::kernels

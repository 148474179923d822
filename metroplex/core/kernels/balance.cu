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
  T sum = 1;  // of the scores that depend on a single logit

  __device__ T softmax(T x) const { return exp(x - all.largest) / all.sum; }
  __device__ T logsumexp() const { return all.largest + log(all.sum); }
};

__device__ RouteScore own(BalanceScore score) {
  return score == BalanceScore::sigmoid ? RouteScore::sigmoid : RouteScore::sqrtsoftplus;
}

template <class T>
__device__ RowSums<T> read_row(const T* x, const BalanceShape& s, unsigned lane) {
  RowSums<T> row;
  if (s.z || s.score == BalanceScore::softmax) row.all = row_softmax(x, s.experts, lane);
  if (s.score == BalanceScore::none || s.score == BalanceScore::softmax) return row;
  T sum = 0;
  for (int64_t e = lane; e < s.experts; e += kWarp) sum += own_score(own(s.score), x[e]);
  row.sum = warp_reduce(sum, Add()) + static_cast<T>(kLeastSum);
  return row;
}

template <class T>
__device__ T share_of(const RowSums<T>& row, T x, const BalanceShape& s) {
  return s.score == BalanceScore::softmax ? row.softmax(x) : own_score(own(s.score), x) / row.sum;
}

// A block processes a chunk: its warps compute the rows, then its threads the columns of the line.
template <class T>
__global__ void __launch_bounds__(kThreads) balance_lines_kernel(const T* logits, double* lines, BalanceShape s) {
  __shared__ RowSums<T> rows[kBalanceRows];
  const int64_t chunks = balance_chunks(s), n = s.sums();
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const int64_t first = chunk * kBalanceRows, left = s.tokens - first,
                  count = left < kBalanceRows ? left : kBalanceRows;
    __syncthreads();  // waits until the previous chunk's rows have been read
    for (int64_t r = threadIdx.x / kWarp; r < count; r += kWarps) {
      const RowSums<T> row = read_row(logits + (first + r) * s.experts, s, threadIdx.x % kWarp);
      if (threadIdx.x % kWarp == 0) rows[r] = row;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      double sum = 0;
      if (i == n - 1) {
        for (int64_t r = 0; s.z && r < count; ++r) sum += rows[r].logsumexp() * rows[r].logsumexp();
      } else if (s.score != BalanceScore::none) {
        const int64_t sample = i / s.experts, e = i % s.experts;
        // Rows of one sample are s.samples apart.
        const int64_t skipped = first % s.samples, start = (sample + s.samples - skipped) % s.samples;
        for (int64_t r = start; r < count; r += s.samples)
          sum += share_of(rows[r], logits[(first + r) * s.experts + e], s);
      }
      lines[chunk * n + i] = sum;
    }
  }
}

__global__ void __launch_bounds__(kThreads) balance_sums_kernel(const double* lines, double* sums, BalanceShape s) {
  const int64_t n = s.sums(), chunks = balance_chunks(s), stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    double sum = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += lines[chunk * n + i];
    sums[i] = sum;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    balance_backward_kernel(const T* logits, const double* dsums, T* dlogits, BalanceShape s) {
  const unsigned lane = threadIdx.x % kWarp;
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  const bool shares = s.score != BalanceScore::none, softmax = s.score == BalanceScore::softmax;
  const T dz = static_cast<T>(dsums[s.sums() - 1]);
  for (int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; t < s.tokens; t += stride) {
    const T* const x = logits + t * s.experts;
    const double* const dshares = dsums + t % s.samples * s.experts;
    const RowSums<T> row = read_row(x, s, lane);
    T mean = 0;
    for (int64_t e = lane; shares && e < s.experts; e += kWarp)
      mean += share_of(row, x[e], s) * static_cast<T>(dshares[e]);
    mean = warp_reduce(mean, Add());
    for (int64_t e = lane; e < s.experts; e += kWarp) {
      T d = 0;
      if (shares) {
        const T slope =
            softmax ? row.softmax(x[e]) : own_slope(own(s.score), x[e], own_score(own(s.score), x[e])) / row.sum;
        d = slope * (static_cast<T>(dshares[e]) - mean);
      }
      dlogits[t * s.experts + e] = s.z ? d + dz * T(2) * row.logsumexp() * row.softmax(x[e]) : d;
    }
  }
}

}  // namespace

template <class T>
void balance_forward_cuda(const T* logits, double* sums, double* lines, const BalanceShape& shape,
                          CUstream_st* stream) {
  if (shape.tokens > 0) {
    launch_kernel("balance_lines", balance_lines_kernel<T>,
                  Grid{blocks_for(balance_chunks(shape) * kThreads), kThreads, 0, stream}, logits, lines, shape);
  }
  launch_kernel("balance_sums", balance_sums_kernel, Grid{blocks_for(shape.sums()), kThreads, 0, stream}, lines, sums,
                shape);
}

template <class T>
void balance_backward_cuda(const T* logits, const double* dsums, T* dlogits, const BalanceShape& shape,
                           CUstream_st* stream) {
  if (shape.tokens == 0) return;
  launch_kernel("balance_backward", balance_backward_kernel<T>,
                Grid{blocks_for(shape.tokens * kWarp), kThreads, 0, stream}, logits, dsums, dlogits, shape);
}

#define MPX_INSTANTIATE(T)                                                                              \
  template void balance_forward_cuda<T>(const T*, double*, double*, const BalanceShape&, CUstream_st*); \
  template void balance_backward_cuda<T>(const T*, const double*, T*, const BalanceShape&, CUstream_st*)
MPX_INSTANTIATE(float);
MPX_INSTANTIATE(double);

}  // namespace metroplex::kernels

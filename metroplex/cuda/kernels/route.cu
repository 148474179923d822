#include "cuda/kernels/launch.h"
#include "cuda/kernels/route_math.h"

namespace metroplex::cuda::kernels {
namespace {

// A warp takes a row.
constexpr unsigned kWarp = 32, kRowsOfBlock = kThreads / kWarp, kAll = 0xFFFFFFFFU;

template <class T>
struct Place {
  T value;
  int64_t index;  // -1: none

  // Comes before `other` in descending order, of equal values the lower index.
  __device__ bool before(const Place& other) const {
    if (index < 0 || other.index < 0) return index >= 0;
    return value > other.value || (value == other.value && index < other.index);
  }
};

template <class T>
__device__ Place<T> first_of_warp(Place<T> mine) {
  for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
    const Place<T> other{__shfl_xor_sync(kAll, mine.value, offset), __shfl_xor_sync(kAll, mine.index, offset)};
    if (other.before(mine)) mine = other;
  }
  return mine;
}

template <class T>
__device__ T what_is_compared(const RouteForward<T>& o, const RouteShape& s, int64_t e) {
  return comparable(o.bias != nullptr ? own_score(s.score, o.logits[e]) + o.bias[e] : o.logits[e]);
}

// Place after place: the first one behind the last.
template <class T>
__device__ void choose_row(const RouteForward<T>& o, const RouteShape& s, unsigned lane) {
  Place<T> last{T(0), -1};
  for (int64_t j = 0; j < s.k; ++j) {
    Place<T> mine{T(0), -1};
    for (int64_t e = lane; e < s.experts; e += kWarp) {
      const Place<T> one{what_is_compared(o, s, e), e};
      if ((last.index < 0 || last.before(one)) && one.before(mine)) mine = one;
    }
    last = first_of_warp(mine);
    if (lane == 0) o.experts[j] = last.index;
  }
  __syncwarp();
}

template <class T>
__device__ RowSoftmax<T> row_softmax(const T* x, int64_t n, unsigned lane) {
  RowSoftmax<T> all;
  all.largest = x[0];
  for (int64_t e = lane; e < n; e += kWarp) all.largest = x[e] > all.largest ? x[e] : all.largest;
  for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
    const T other = __shfl_xor_sync(kAll, all.largest, offset);
    all.largest = other > all.largest ? other : all.largest;
  }
  all.sum = 0;
  for (int64_t e = lane; e < n; e += kWarp) all.sum += exp(x[e] - all.largest);
  for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) all.sum += __shfl_xor_sync(kAll, all.sum, offset);
  return all;
}

template <class T>
__global__ void __launch_bounds__(kThreads) route_forward_kernel(RouteForward<T> all, RouteShape s) {
  const unsigned lane = threadIdx.x % kWarp;
  const int64_t stride = int64_t{gridDim.x} * kRowsOfBlock;
  for (int64_t t = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp; t < s.tokens; t += stride) {
    const RouteForward<T> o{all.logits + t * s.experts, all.bias, all.experts + t * s.k, all.probs + t * s.k};
    if (!s.chosen) choose_row(o, s, lane);
    RowSoftmax<T> whole;
    if (s.score == RouteScore::softmax_of_all) whole = row_softmax(o.logits, s.experts, lane);
    if (lane == 0) chosen_probs(o.logits, o.experts, o.probs, whole, s);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) route_backward_kernel(RouteBackward<T> all, RouteShape s) {
  const unsigned lane = threadIdx.x % kWarp;
  const int64_t stride = int64_t{gridDim.x} * kRowsOfBlock;
  for (int64_t t = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp; t < s.tokens; t += stride) {
    const RouteBackward<T> o{all.dprobs + t * s.k, all.logits + t * s.experts, all.experts + t * s.k,
                             all.dlogits + t * s.experts};
    const bool of_all = s.score == RouteScore::softmax_of_all;
    RowSoftmax<T> whole;
    if (of_all) whole = row_softmax(o.logits, s.experts, lane);
    for (int64_t e = lane; e < s.experts; e += kWarp) o.dlogits[e] = T(0);
    __syncwarp();
    T mean = 0;
    if (lane == 0) mean = chosen_gradients(o, whole, s);
    mean = __shfl_sync(kAll, mean, 0);
    if (!of_all) continue;
    for (int64_t e = lane; e < s.experts; e += kWarp) {
      bool chosen = false;
      for (int64_t j = 0; j < s.k; ++j) chosen = chosen || o.experts[j] == e;
      if (!chosen) o.dlogits[e] = -mean * exp(o.logits[e] - whole.largest) / whole.sum;
    }
  }
}

}  // namespace

template <class T>
void route_forward_cuda(const RouteForward<T>& operands, const RouteShape& shape, CUstream_st* stream) {
  if (shape.tokens == 0) return;
  launch_kernel("route_forward", route_forward_kernel<T>, Grid{blocks_for(shape.tokens * kWarp), kThreads, 0, stream},
                operands, shape);
}

template <class T>
void route_backward_cuda(const RouteBackward<T>& operands, const RouteShape& shape, CUstream_st* stream) {
  if (shape.tokens == 0) return;
  launch_kernel("route_backward", route_backward_kernel<T>,
                Grid{blocks_for(shape.tokens * kWarp), kThreads, 0, stream}, operands, shape);
}

#define MPX_INSTANTIATE(T)                                                                      \
  template void route_forward_cuda<T>(const RouteForward<T>&, const RouteShape&, CUstream_st*); \
  template void route_backward_cuda<T>(const RouteBackward<T>&, const RouteShape&, CUstream_st*)
MPX_INSTANTIATE(float);
MPX_INSTANTIATE(double);

}  // namespace metroplex::cuda::kernels

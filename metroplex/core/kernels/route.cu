#include "kernels/launch.h"
#include "kernels/route_math.h"
#include "kernels/row_softmax.h"

namespace metroplex::kernels {
namespace {

template <class T>
__device__ Place<T> first_of_warp(Place<T> mine) {
  for (unsigned offset = kWarp / 2; offset > 0; offset /= 2) {
    const Place<T> other{__shfl_xor_sync(kAll, mine.value, offset), __shfl_xor_sync(kAll, mine.index, offset)};
    if (other.before(mine)) mine = other;
  }
  return mine;
}

// Returns the next place after `last` among the values(0..n-1) for which taken(i) is true.
template <class T, class Values, class Taken>
__device__ Place<T> next_of_warp(const Place<T>& last, int64_t n, unsigned lane, const Values& values,
                                 const Taken& taken) {
  Place<T> mine;
  for (int64_t i = lane; i < n; i += kWarp) {
    const Place<T> one{values(i), i};
    if ((last.index < 0 || last.before(one)) && one.before(mine) && taken(i)) mine = one;
  }
  return first_of_warp(mine);
}

// Returns the last chosen group; groups after it in descending order are not chosen.
template <class T>
__device__ Place<T> last_group(const RouteForward<T>& forward, const RouteShape& shape, const RowSoftmax<T>& whole,
                               unsigned lane) {
  for (int64_t g = lane; g < shape.groups; g += kWarp)
    forward.group_scores[g] = group_score(forward, shape, whole, g);
  __syncwarp();
  Place<T> last;
  for (int64_t j = 0; j < shape.groups_chosen; ++j)
    last = next_of_warp(
        last, shape.groups, lane, [&](int64_t g) { return forward.group_scores[g]; }, [](int64_t) { return true; });
  return last;
}

template <class T>
__device__ void choose_row(const RouteForward<T>& forward, const RouteShape& shape, const RowSoftmax<T>& whole,
                           unsigned lane) {
  Place<T> group, last;
  const int64_t of_group = shape.groups > 0 ? shape.experts / shape.groups : shape.experts;
  if (shape.groups > 0) group = last_group(forward, shape, whole, lane);
  const auto taken = [&](int64_t e) {
    const int64_t g = e / of_group;
    return shape.groups == 0 || !group.before({forward.group_scores[g], g});
  };
  for (int64_t j = 0; j < shape.k; ++j) {
    last = next_of_warp(
        last, shape.experts, lane, [&](int64_t e) { return compared(forward, shape, e); }, taken);
    if (lane == 0) forward.experts[j] = last.index;
  }
  __syncwarp();
}

// One warp per row.
template <class T>
__global__ void __launch_bounds__(kThreads) route_forward_kernel(RouteForward<T> all, RouteShape shape) {
  const unsigned lane = threadIdx.x % kWarp;
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  for (int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; t < shape.tokens; t += stride) {
    const RouteForward<T> forward = all.row(t, shape);
    RowSoftmax<T> whole;
    if (shape.score == RouteScore::softmax_of_all) whole = row_softmax(forward.logits, shape.experts, lane);
    if (!shape.chosen) choose_row(forward, shape, whole, lane);
    if (lane == 0) chosen_probs(forward.logits, forward.experts, forward.probs, whole, shape);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) route_backward_kernel(RouteBackward<T> all, RouteShape shape) {
  const unsigned lane = threadIdx.x % kWarp;
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  for (int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; t < shape.tokens; t += stride) {
    const RouteBackward<T> backward{all.dprobs + t * shape.k, all.logits + t * shape.experts,
                                    all.experts + t * shape.k, all.dlogits + t * shape.experts};
    const bool of_all = shape.score == RouteScore::softmax_of_all;
    RowSoftmax<T> whole;
    if (of_all) whole = row_softmax(backward.logits, shape.experts, lane);
    for (int64_t e = lane; e < shape.experts; e += kWarp) backward.dlogits[e] = T(0);
    __syncwarp();
    T mean = 0;
    if (lane == 0) mean = chosen_gradients(backward, whole, shape);
    mean = __shfl_sync(kAll, mean, 0);
    if (!of_all) continue;
    for (int64_t e = lane; e < shape.experts; e += kWarp) {
      bool chosen = false;
      for (int64_t j = 0; j < shape.k; ++j) chosen = chosen || backward.experts[j] == e;
      if (!chosen) backward.dlogits[e] = -mean * exp(backward.logits[e] - whole.largest) / whole.sum;
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

}  // namespace metroplex::kernels

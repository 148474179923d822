// For .cu files: softmax statistics of a row of logits, by a warp.
#pragma once

#include "kernels/launch.h"
#include "kernels/route_math.h"

namespace metroplex::kernels {

// Every lane must call it and gets the result.
template <class T>
__device__ RowSoftmax<T> row_softmax(const T* x, int64_t n, unsigned lane) {
  RowSoftmax<T> all{x[0], 0};
  for (int64_t e = lane; e < n; e += kWarp) all.largest = Max()(all.largest, x[e]);
  all.largest = warp_reduce(all.largest, Max());
  for (int64_t e = lane; e < n; e += kWarp) all.sum += exp(x[e] - all.largest);
  all.sum = warp_reduce(all.sum, Add());
  return all;
}

}  // namespace metroplex::kernels

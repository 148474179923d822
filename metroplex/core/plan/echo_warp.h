// For .cu files: the lanes of the calling warp, for EchoLaneProgram. Include it after cuda_runtime.h.
#pragma once

#include "plan/echo_lanes.h"

namespace metroplex::plan {

class EchoWarp {
 public:
  template <class F>
  __device__ void each(int32_t count, const F& f) const {
    __syncwarp();
    for (int32_t i = lane_; i < count; i += kLanes) f(i);
    __syncwarp();
  }
  template <class F>
  __device__ EchoKey best(int32_t count, const F& f) const {
    EchoKey mine;
    each(count, [&](int32_t i) {
      const EchoKey key = f(i);
      if (mine < key) mine = key;
    });
    for (unsigned offset = kLanes / 2; offset > 0; offset /= 2) {
      EchoKey other;
      other.first = __shfl_xor_sync(kAll, mine.first, offset);
      other.second = __shfl_xor_sync(kAll, mine.second, offset);
      other.third = __shfl_xor_sync(kAll, mine.third, offset);
      other.index = __shfl_xor_sync(kAll, mine.index, offset);
      if (mine < other) mine = other;
    }
    return mine;
  }
  template <class F>
  __device__ int64_t sum(int32_t count, const F& f) const {
    int64_t mine = 0;
    each(count, [&](int32_t i) { mine += f(i); });
    for (unsigned offset = kLanes / 2; offset > 0; offset /= 2) mine += __shfl_xor_sync(kAll, mine, offset);
    return mine;
  }
  template <class F>
  __device__ int64_t most(int32_t count, const F& f) const {
    int64_t mine = 0;
    each(count, [&](int32_t i) { mine = mine < f(i) ? f(i) : mine; });
    for (unsigned offset = kLanes / 2; offset > 0; offset /= 2) {
      const int64_t other = __shfl_xor_sync(kAll, mine, offset);
      mine = mine < other ? other : mine;
    }
    return mine;
  }
  template <class F>
  __device__ void one(const F& f) const {
    __syncwarp();
    if (lane_ == 0) f();
    __syncwarp();
  }

 private:
  static constexpr int32_t kLanes = 32;
  static constexpr unsigned kAll = 0xFFFFFFFFU;
  const int32_t lane_ = static_cast<int32_t>(threadIdx.x % 32);
};

}  // namespace metroplex::plan

// For .cu files: the ranges of rows of consecutive groups, such as the experts of a layer.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/launch.h"

namespace metroplex::kernels {

// `counts` [groups]: rows of each group; counts beyond `rows` are clamped. Null: all groups have rows / groups rows.
struct GroupWalk {
  const int64_t* counts;
  int64_t groups, rows;
  int64_t group = -1, begin = 0, end = 0;

  __device__ int64_t count(int64_t of) const {
    const int64_t given = counts != nullptr ? counts[of] : rows / groups;
    return given > 0 ? given : 0;
  }
  __device__ bool next() {
    if (++group >= groups) return false;
    const int64_t left = rows - end, given = count(group);
    begin = end;
    end += given < left ? given : left;
    return true;
  }
  // Returns the end of group `first` + lane, if group `first` begins at `end`. For whole warps: reads 32 counts at
  // once.
  __device__ int64_t scan(int64_t first) const {
    const int64_t of = first + threadIdx.x % kWarp, sum = warp_scan(of < groups ? count(of) : 0);
    return sum < rows - end ? end + sum : rows;
  }
  // Moves to the group of `row`, which must be at or after `begin`. Every lane of a warp must call it with the same
  // row.
  __device__ bool reaches(int64_t row) {
    while (row >= end) {
      if (group >= groups - 1) return false;
      const int64_t next_end = scan(group + 1);
      const unsigned later = __ballot_sync(kAll, next_end > row);
      const int first = later != 0 ? __ffs(static_cast<int>(later)) - 1 : static_cast<int>(kWarp) - 1;
      const int64_t before = __shfl_sync(kAll, next_end, first > 0 ? first - 1 : 0);
      begin = first > 0 ? before : end;
      end = __shfl_sync(kAll, next_end, first);
      group += 1 + first;
    }
    return true;
  }
};

}  // namespace metroplex::kernels

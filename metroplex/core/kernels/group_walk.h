// For .cu files: the ranges of rows of consecutive groups, such as the experts of a layer.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace metroplex::kernels {

// `counts` [groups]: rows of each group; counts beyond `rows` are clamped. Null: all groups have rows / groups rows.
struct GroupWalk {
  const int64_t* counts;
  int64_t groups, rows;
  int64_t group = -1, begin = 0, end = 0;

  __device__ bool next() {
    if (++group >= groups) return false;
    const int64_t left = rows - end, given = counts != nullptr ? counts[group] : rows / groups,
                  count = given < left ? given : left;
    begin = end;
    end += count > 0 ? count : 0;
    return true;
  }
  __device__ bool reaches(int64_t row) {
    while (row >= end) {
      if (!next()) return false;
    }
    return true;
  }
};

}  // namespace metroplex::kernels

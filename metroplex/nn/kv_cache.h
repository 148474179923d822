// Keys and values of the tokens so far, for generation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

namespace metroplex::nn {

// The owner advances `length` by the number of new tokens after a forward of the whole model; capacity grows on
// demand.
struct KvCache {
  struct Layer {
    at::Tensor k, v;  // [capacity, b, g, d or dv]
  };
  int64_t length = 0;
  std::map<int64_t, Layer> layers;  // by global number

  // Stores those of the new tokens, [s, b, g, d or dv], behind the others; -> [length + s, ...], views into the
  // cache.
  Layer append(int64_t layer, const at::Tensor& k, const at::Tensor& v);
};

}  // namespace metroplex::nn

// KV cache for generation, and the state of recurrent layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

namespace metroplex::nn {

// The owner advances `length` by the number of new tokens after each forward of the whole model. Capacity grows on
// demand.
struct KvCache {
  struct Layer {
    at::Tensor k, v;  // [capacity, b, g, d or dv]
  };
  // Both tensors are undefined before the first token.
  struct Recurrent {
    at::Tensor inputs;  // [k - 1, b, channels]: the last inputs of the layer's short convolution
    at::Tensor state;   // of the recurrence after `length` tokens
  };
  int64_t length = 0;
  std::map<int64_t, Layer> layers;  // by global layer number
  std::map<int64_t, Recurrent> recurrent;

  // Appends keys and values of the new tokens, [s, b, g, d or dv]. Returns views [length + s, ...] of the cache.
  Layer append(int64_t layer, const at::Tensor& k, const at::Tensor& v);
};

}  // namespace metroplex::nn

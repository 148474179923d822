#include "nn/kv_cache.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace metroplex::nn {

KvCache::Layer KvCache::append(int64_t layer, const at::Tensor& k, const at::Tensor& v) {
  const int64_t s = k.size(0), needed = length + s;
  const auto append_to = [&](at::Tensor& stored, const at::Tensor& x) {
    if (!stored.defined() || stored.size(0) < needed) {
      std::vector<int64_t> sizes = x.sizes().vec();
      sizes[0] = std::max<int64_t>(needed, 2 * length);
      at::Tensor larger = at::empty(sizes, x.options());
      if (length > 0) larger.narrow(0, 0, length).copy_(stored.narrow(0, 0, length));
      stored = larger;
    }
    stored.narrow(0, length, s).copy_(x);
    return stored.narrow(0, 0, needed);
  };
  Layer& stored = layers[layer];
  return {append_to(stored.k, k), append_to(stored.v, v)};
}

}  // namespace metroplex::nn

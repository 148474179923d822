#include "comm/backends/reduce.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <algorithm>
#include <type_traits>

#include "base/error.h"

namespace metroplex::comm {
namespace {

constexpr int64_t kBlock = 1024;  // elements; the running sum stays in the L1 cache

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, at::Half> || std::is_same_v<T, at::BFloat16>, float, T>;

template <class T>
__attribute__((optimize("O3"))) void add_block(Wide<T>* __restrict sum, const T* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<T, bool>) {
      sum[i] = sum[i] || x[i];
    } else {
      sum[i] = static_cast<Wide<T>>(sum[i] + static_cast<Wide<T>>(x[i]));
    }
  }
}

template <class T>
__attribute__((optimize("O3"))) void max_block(Wide<T>* __restrict best, const T* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<Wide<T>>(x[i]);
    best[i] = (value > best[i] || value != value) ? value : best[i];  // propagates NaN
  }
}

template <class T>
void reduce_typed(const std::vector<const void*>& sources, const std::vector<void*>& destinations, ElementRange span,
                  ReduceOp op) {
  Wide<T> total[kBlock];
  for (int64_t begin = span.begin; begin < span.end; begin += kBlock) {
    const int64_t n = std::min(kBlock, span.end - begin);
    const T* first = static_cast<const T*>(sources[0]) + begin;
    for (int64_t i = 0; i < n; ++i) total[i] = static_cast<Wide<T>>(first[i]);
    for (size_t s = 1; s < sources.size(); ++s) {
      const T* x = static_cast<const T*>(sources[s]) + begin;
      if (op == ReduceOp::sum) add_block<T>(total, x, n);
      else max_block<T>(total, x, n);
    }
    for (void* destination : destinations) {
      T* out = static_cast<T*>(destination) + begin;
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(total[i]);
    }
  }
}

}  // namespace

void reduce_in_order(const std::vector<const void*>& sources, const std::vector<void*>& destinations,
                     ElementRange span, at::ScalarType type, ReduceOp op) {
  AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, type, "reduce_in_order",
                             [&] { reduce_typed<scalar_t>(sources, destinations, span, op); });
}

at::Tensor reduce_tensors(const std::vector<at::Tensor>& sources, ReduceOp op) {
  const at::Tensor& first = sources.front();
  if (first.is_cpu()) {
    at::Tensor out = at::empty(first.sizes(), first.options());
    std::vector<const void*> pointers;
    for (const at::Tensor& source : sources) pointers.push_back(source.const_data_ptr());
    reduce_in_order(pointers, {out.mutable_data_ptr()}, {0, out.numel()}, first.scalar_type(), op);
    return out;
  }
  const bool narrow = first.scalar_type() == at::kHalf || first.scalar_type() == at::kBFloat16;
  at::Tensor total = narrow ? first.to(at::kFloat) : first.clone();
  for (size_t i = 1; i < sources.size(); ++i) {
    if (op == ReduceOp::max) total = at::maximum(total, sources[i]);
    else if (first.scalar_type() == at::kBool) total.logical_or_(sources[i]);
    else total.add_(sources[i]);
  }
  return total.to(first.scalar_type());
}

}  // namespace metroplex::comm

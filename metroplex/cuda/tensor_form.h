// The form of a tensor, type and sizes: what a graph has been captured for.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "base/error.h"

namespace metroplex::cuda {

// "Float [2, 3]", or "undefined".
inline std::string form_of(const at::Tensor& x) {
  return x.defined() ? base::concat(c10::toString(x.scalar_type()), " ", x.sizes()) : "undefined";
}

// Two undefined ones have the same.
inline bool same_form(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
}

}  // namespace metroplex::cuda

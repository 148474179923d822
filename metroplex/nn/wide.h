// "In fp32" means in at least fp32: half types are widened to float, float and double stay what they are.
#pragma once

#include <ATen/core/Tensor.h>

namespace metroplex::nn {

inline at::ScalarType wide_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

inline at::Tensor to_wide(const at::Tensor& x) { return x.defined() ? x.to(wide_type(x.scalar_type())) : x; }

// Calls body(float{}) or body(double{}) by the dtype of a wide tensor.
template <class Body>
void dispatch_wide(const at::Tensor& wide, const Body& body) {
  if (wide.scalar_type() == at::kDouble) {
    body(double{});
  } else {
    body(float{});
  }
}

}  // namespace metroplex::nn

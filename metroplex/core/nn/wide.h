// "In fp32" means in at least fp32: half types are widened to fp32; fp32 and fp64 stay as they are. Kernels that read
// and write half types directly are called through dispatch_element.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "kernels/half.h"

namespace metroplex::nn {

inline at::ScalarType acc_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

inline at::Tensor to_wide(const at::Tensor& x) { return x.defined() ? x.to(acc_type(x.scalar_type())) : x; }

inline bool is_half(const at::Tensor& x) { return acc_type(x.scalar_type()) != x.scalar_type(); }

// Calls body(T{}) with T double or float, for a tensor of at least fp32.
template <class Body>
void dispatch_wide(const at::Tensor& x, const Body& body) {
  x.scalar_type() == at::kDouble ? body(double{}) : body(float{});
}

// Calls body(T{}) with the kernels' element type for `type`.
template <class Body>
void dispatch_element(at::ScalarType type, const Body& body) {
  switch (type) {
    case at::kDouble:
      return body(double{});
    case at::kBFloat16:
      return body(kernels::Bf16{});
    case at::kHalf:
      return body(kernels::F16{});
    default:
      MPX_ASSERT(type == at::kFloat, "a kernel has no version for this dtype");
      return body(float{});
  }
}

template <class T>
constexpr at::ScalarType kElementType = std::is_same_v<T, double>          ? at::kDouble
                                        : std::is_same_v<T, kernels::Bf16> ? at::kBFloat16
                                        : std::is_same_v<T, kernels::F16>  ? at::kHalf
                                                                           : at::kFloat;

// Returns the elements of x, whose type must be T; null if x is undefined.
template <class T>
T* elements(const at::Tensor& x) {
  if (!x.defined()) return nullptr;
  MPX_ASSERT(x.scalar_type() == kElementType<T>, "a kernel got a tensor of another dtype");
  return static_cast<T*>(x.mutable_data_ptr());
}

}  // namespace metroplex::nn

// For .cu files: from the kind of an activation to code that is compiled for it.
#pragma once

#include "cuda/kernels/activation.h"

namespace metroplex::cuda::kernels {

// Calls call.template operator()<kind>().
template <class Call>
void with_kind(Activation kind, const Call& call) {
  switch (kind) {
    case Activation::gelu:
      return call.template operator()<Activation::gelu>();
    case Activation::gelu_tanh:
      return call.template operator()<Activation::gelu_tanh>();
    case Activation::quick_gelu:
      return call.template operator()<Activation::quick_gelu>();
    case Activation::silu:
      return call.template operator()<Activation::silu>();
    case Activation::relu:
      return call.template operator()<Activation::relu>();
    case Activation::squared_relu:
      return call.template operator()<Activation::squared_relu>();
  }
}

}  // namespace metroplex::cuda::kernels

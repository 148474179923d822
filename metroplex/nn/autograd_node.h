// An autograd node whose backward is a closure: forward is plain code, what backward needs is captured by value.
// The closure is dropped as soon as it has run, and with it everything it captured.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace metroplex::nn {

using Gradients = std::vector<at::Tensor>;
// Gets the gradient of the output, returns one gradient an input (undefined where there is none).
using Backward = std::function<Gradients(const at::Tensor& dy)>;

// What happens where no gradient of the output came: nothing, and the inputs get none; or the closure is called with
// an undefined one.
enum class WithoutGradient { skip, call };

// Makes `out` the differentiable result of `inputs`. `out` must be a fresh tensor without history (computed under
// NoGradGuard). Without grad mode it is handed back as it is. `inputs` may be empty: parameters are not leaves.
at::Tensor attach(at::Tensor out, const std::vector<at::Tensor>& inputs, Backward backward,
                  WithoutGradient without = WithoutGradient::skip);

// The gradient of `x`, a result of attach(), arrives in the type it has; otherwise the engine casts it to that of x.
void keep_gradient_type(const at::Tensor& x);

}  // namespace metroplex::nn

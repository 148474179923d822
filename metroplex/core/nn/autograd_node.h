// An autograd node whose backward is a closure. Forward is ordinary code; the closure captures by value the tensors
// that backward needs. The node releases the closure and its captures after running it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace metroplex::nn {

using Gradients = std::vector<at::Tensor>;
// Takes the gradient of the output and returns one gradient per input; undefined means no gradient.
using Backward = std::function<Gradients(const at::Tensor& dy)>;

// Behavior if no gradient of the output arrives. `skip`: the inputs get none. `call`: the closure receives an
// undefined tensor.
enum class MissingGradient { skip, call };

// Makes `out` the differentiable result of `inputs`. `out` must be a new tensor without history (computed under
// NoGradGuard). Returns `out` unchanged if grad mode is off. `inputs` may be empty, because parameters are not
// autograd leaves.
at::Tensor attach(at::Tensor out, const std::vector<at::Tensor>& inputs, Backward backward,
                  MissingGradient missing = MissingGradient::skip);

// Lets the gradient of `x`, a result of attach(), keep its own dtype; by default the engine casts it to that of x.
void keep_gradient_type(const at::Tensor& x);

}  // namespace metroplex::nn

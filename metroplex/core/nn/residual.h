// The residual connection of a sublayer f: y = stream r + dropout(result f(norm(x))). r is x, or norm(x) with
// model.apply_residual_connection_post_layernorm. `stream` and `result` are the factors of config::ResidualFactors.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/layer_parts.h"
#include "nn/dropout_norm.h"

namespace metroplex::nn {

class Residual {
 public:
  Residual(const config::Model& model, const config::ResidualFactors& factors)
      : continues_norm_(model.apply_residual_connection_post_layernorm), factors_(factors) {}

  // Takes x as `h` and its norm; `h` of the result is stream r, in the type of x.
  ResidualAndNorm connect(ResidualAndNorm x) const;
  // Multiplies the result of the sublayer by its factor.
  at::Tensor scale(const at::Tensor& out) const;

 private:
  bool continues_norm_;
  config::ResidualFactors factors_;
};

}  // namespace metroplex::nn

#include "nn/residual.h"

#include <ATen/ops/mul.h>

namespace metroplex::nn {

ResidualAndNorm Residual::connect(ResidualAndNorm x) const {
  if (continues_norm_) {
    const ResidualAndNorm readers = fork_sum(x.normed.x);
    x.h = readers.h.to(x.h.scalar_type());
    x.normed.x = readers.normed.x;
  }
  if (factors_.stream != 1) x.h = at::mul(x.h, factors_.stream);
  return x;
}

at::Tensor Residual::scale(const at::Tensor& out) const {
  return factors_.result != 1 ? at::mul(out, factors_.result) : out;
}

}  // namespace metroplex::nn

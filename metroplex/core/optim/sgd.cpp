// Momentum as in torch.optim.SGD; weight decay is added to the gradient.
#include "optim/elementwise.h"

namespace metroplex::optim {

void sgd_update(const config::Optim& config, const ElementwiseStep& step) {
  step.run(kernels::sgd_step, kernels::sgd_step_cuda, kernels::SgdHyper{config.sgd_momentum});
}

}  // namespace metroplex::optim

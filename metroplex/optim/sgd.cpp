// torch.optim.SGD's momentum; decay is added to the gradient.
#include "optim/elementwise.h"

namespace metroplex::optim {

namespace kernels = cuda::kernels;

void sgd_update(const config::Optim& config, const ElementwiseStep& step) {
  step.run(kernels::sgd_step, kernels::sgd_step_cuda,
           kernels::SgdHyper{step.rates.lr, config.sgd_momentum, step.rates.weight_decay, step.grad_factor,
                             step.step == 1});
}

}  // namespace metroplex::optim

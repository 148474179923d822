// Lion (Chen et al., arXiv:2302.06675).
#include "optim/elementwise.h"

namespace metroplex::optim {

void lion_update(const config::Optim& config, const ElementwiseStep& step) {
  step.run(kernels::lion_step, kernels::lion_step_cuda, kernels::LionHyper{config.lion_beta1, config.lion_beta2});
}

}  // namespace metroplex::optim

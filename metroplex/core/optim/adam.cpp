// AdamW: decoupled weight decay (Loshchilov & Hutter, arXiv:1711.05101).
#include "optim/elementwise.h"

namespace metroplex::optim {

void adam_update(const config::Optim& config, const ElementwiseStep& step) {
  step.run(kernels::adam_step, kernels::adam_step_cuda,
           kernels::AdamHyper{config.adam_beta1, config.adam_beta2, config.adam_eps});
}

}  // namespace metroplex::optim

#include "optim/optimizer.h"

#include "optim/elementwise.h"
#include "optim/muon.h"

namespace metroplex::optim {

std::unique_ptr<Optimizer> make_optimizer(const config::Optim& config, std::vector<Slice> slices,
                                          const OptimizerContext& context) {
  if (config.optimizer == config::OptimizerKind::muon)
    return std::make_unique<Muon>(config, std::move(slices), context);
  return std::make_unique<Elementwise>(config.optimizer, config, std::move(slices), context);
}

}  // namespace metroplex::optim

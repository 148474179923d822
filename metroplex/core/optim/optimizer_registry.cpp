#include "optim/optimizer.h"

#include "base/error.h"
#include "optim/elementwise.h"
#include "optim/muon.h"

namespace metroplex::optim {

namespace {

using OptimizerPtr = std::unique_ptr<Optimizer>;

void adam(const config::Optim& config, const ElementwiseStep& step) {
  step.run(kernels::adam_step, kernels::adam_step_cuda,
           kernels::AdamHyper{config.adam_beta1, config.adam_beta2, config.adam_eps});
}

void sgd(const config::Optim& config, const ElementwiseStep& step) {
  step.run(kernels::sgd_step, kernels::sgd_step_cuda, kernels::SgdHyper{config.sgd_momentum});
}

void lion(const config::Optim& config, const ElementwiseStep& step) {
  step.run(kernels::lion_step, kernels::lion_step_cuda, kernels::LionHyper{config.lion_beta1, config.lion_beta2});
}

template <ElementwiseUpdate* update>
OptimizerPtr elementwise(const config::OptimizerTraits& traits, const config::Optim& config,
                         std::vector<Shard> slices, const OptimizerContext& context) {
  return std::make_unique<Elementwise>(traits, update, config, std::move(slices), context);
}

OptimizerPtr muon(const config::OptimizerTraits& traits, const config::Optim& config, std::vector<Shard> slices,
                  const OptimizerContext& context) {
  return std::make_unique<Muon>(traits, config, std::move(slices), context);
}

struct Entry {
  const char* name;  // matches a row in config/optimizers.h
  OptimizerPtr (*make)(const config::OptimizerTraits& traits, const config::Optim& config, std::vector<Shard> slices,
                       const OptimizerContext& context);
};
constexpr Entry kOptimizers[] = {
    {"adam", elementwise<adam>}, {"sgd", elementwise<sgd>}, {"lion", elementwise<lion>}, {"muon", muon}};

}  // namespace

OptimizerPtr make_optimizer(const std::string& name, const config::Optim& config, std::vector<Shard> slices,
                            const OptimizerContext& context) {
  const config::OptimizerTraits* const traits = config::find_optimizer(name);
  for (const Entry& entry : kOptimizers) {
    if (traits != nullptr && name == entry.name) return entry.make(*traits, config, std::move(slices), context);
  }
  std::string names;
  for (const std::string& known : config::optimizer_names()) names += (names.empty() ? "" : ", ") + known;
  MPX_CHECK(false, "optim", "optim.optimizer '", name, "' is unknown; choose one of ", names);
}

OptimizerPtr make_optimizer(const config::Optim& config, std::vector<Shard> slices, const OptimizerContext& context) {
  return make_optimizer(config.optimizer, config, std::move(slices), context);
}

}  // namespace metroplex::optim

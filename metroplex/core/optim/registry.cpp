#include "optim/optimizer.h"

#include "base/error.h"
#include "optim/elementwise.h"
#include "optim/muon.h"

namespace metroplex::optim {

ElementwiseUpdate adam_update, sgd_update, lion_update;  // each is defined in its own file

namespace {

using Made = std::unique_ptr<Optimizer>;

template <ElementwiseUpdate* update>
Made elementwise(const config::OptimizerTraits& traits, const config::Optim& config, std::vector<Slice> slices,
                 const OptimizerContext& context) {
  return std::make_unique<Elementwise>(traits, update, config, std::move(slices), context);
}

Made muon(const config::OptimizerTraits& traits, const config::Optim& config, std::vector<Slice> slices,
          const OptimizerContext& context) {
  return std::make_unique<Muon>(traits, config, std::move(slices), context);
}

struct Entry {
  const char* name;  // of a row in config/optimizers.h
  Made (*make)(const config::OptimizerTraits& traits, const config::Optim& config, std::vector<Slice> slices,
               const OptimizerContext& context);
};
constexpr Entry kOptimizers[] = {{"adam", elementwise<adam_update>},
                                 {"sgd", elementwise<sgd_update>},
                                 {"lion", elementwise<lion_update>},
                                 {"muon", muon}};

}  // namespace

Made make_optimizer(const std::string& name, const config::Optim& config, std::vector<Slice> slices,
                    const OptimizerContext& context) {
  const config::OptimizerTraits* const traits = config::find_optimizer(name);
  for (const Entry& entry : kOptimizers) {
    if (traits != nullptr && name == entry.name) return entry.make(*traits, config, std::move(slices), context);
  }
  std::string names;
  for (const std::string& known : config::optimizer_names()) names += (names.empty() ? "" : ", ") + known;
  MPX_CHECK(false, "optim", "optim.optimizer '", name, "' is unknown; choose one of ", names);
}

Made make_optimizer(const config::Optim& config, std::vector<Slice> slices, const OptimizerContext& context) {
  return make_optimizer(config.optimizer, config, std::move(slices), context);
}

}  // namespace metroplex::optim

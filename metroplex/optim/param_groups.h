// Learning rate and weight decay of each parameter. Parameters with the same factors form a group.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "config/optim.h"
#include "nn/param.h"
#include "optim/lr_schedule.h"

namespace metroplex::optim {

struct GroupRates {
  double lr = 0, weight_decay = 0;
};

class ParamGroups {
 public:
  // Biases and one-dimensional parameters have no weight decay (query and key norms have it with
  // optim.apply_wd_to_qk_layernorm). optim.decoupled_lr is for embeddings and the output layer. optim.param_groups
  // multiplies learning rate and weight decay by name.
  ParamGroups(const config::Optim& config, const std::vector<nn::Param*>& params);

  size_t of(const nn::Param& param) const { return group_of_.at(&param); }
  // In the order given, the same on all ranks that hold them.
  const std::vector<nn::Param*>& params() const { return params_; }
  const std::vector<GroupFactors>& factors() const { return factors_; }
  // The rates of every group after `num_steps` samples.
  std::vector<GroupRates> rates(const LrSchedule& schedule, int64_t num_steps) const;

 private:
  std::vector<nn::Param*> params_;
  std::vector<GroupFactors> factors_;
  std::map<const nn::Param*, size_t> group_of_;
};

}  // namespace metroplex::optim

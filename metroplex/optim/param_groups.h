// Which learning rate and weight decay a parameter gets: parameters with the same factors form a group.
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
  // Biases and one-dimensional parameters have no decay (norms over queries and keys have it with
  // optim.apply_wd_to_qk_layernorm); optim.decoupled_lr is for embeddings and the output layer; optim.param_groups
  // multiplies both by name.
  ParamGroups(const config::Optim& config, const std::vector<nn::Param*>& params);

  size_t of(const nn::Param& param) const { return group_of_.at(&param); }
  // As given: in the same order on all ranks that share them.
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

// Learning rate and weight decay of each parameter. Parameters with equal factors form a group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "config/optim.h"
#include "device/launch_point.h"
#include "nn/param.h"
#include "optim/lr_schedule.h"

namespace metroplex::optim {

struct GroupRates {
  double lr = 0, weight_decay = 0;
};

class ParamGroups {
 public:
  // Biases and one-dimensional parameters have no weight decay; query and key norms have it with
  // optim.apply_wd_to_qk_layernorm. optim.decoupled_lr applies to embeddings and the output layer. optim.param_groups
  // sets LR multipliers and weight-decay factors by parameter name.
  ParamGroups(const config::Optim& config, const std::vector<nn::Param*>& params);

  size_t of(const nn::Param& param) const { return group_index_.at(&param); }
  // Constructor order, which is the same on all ranks that hold the parameters.
  const std::vector<nn::Param*>& params() const { return params_; }
  const std::vector<GroupFactors>& factors() const { return factors_; }
  // Rates of every group after `num_steps` samples.
  std::vector<GroupRates> rates(const LrSchedule& schedule, int64_t num_steps) const;

 private:
  std::vector<nn::Param*> params_;
  std::vector<GroupFactors> factors_;
  std::map<const nn::Param*, size_t> group_index_;
};

// Learning rate and weight decay of every parameter group for the next successful steps, on the parameters'
// device. A step reads its row on the device (kernels/step_state.h).
class RateTable {
 public:
  static constexpr int64_t kRows = 64;

  RateTable() = default;  // without rows
  RateTable(const device::Target& target, size_t num_groups, double beta1, double beta2);

  // [1 + kRows rate_row(groups)] double; the address never changes.
  const at::Tensor& tensor() const { return tensor_; }

  // The position of the next step: `steps` successful steps have consumed `samples`, and each further step consumes
  // `batch`.
  struct Position {
    int64_t steps = 0, samples = 0, batch = 0;
  };
  // Ensures that the table covers the next step with the rates of `schedule`. Rewrites the table if it ends earlier
  // or was computed for other sample counts.
  void cover(const LrSchedule& schedule, const ParamGroups& groups, const Position& next);
  // Invalidates the table. Call after the schedule has changed.
  void invalidate() { first_.reset(); }

 private:
  device::Target target_;
  at::Tensor tensor_;
  double beta1_ = 0, beta2_ = 0;
  std::optional<Position> first_;  // position of the first row
};

}  // namespace metroplex::optim

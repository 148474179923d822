// Learning rate and weight decay of every parameter group for the successful steps to come, where the parameters lie:
// a step takes the row of its number (cuda/kernels/step_state.h) without asking the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "cuda/launch_point.h"
#include "optim/lr_schedule.h"
#include "optim/param_groups.h"

namespace metroplex::optim {

class RateTable {
 public:
  static constexpr int64_t kRows = 64;

  RateTable() = default;  // without rows
  RateTable(const cuda::Target& target, size_t num_groups, double beta1, double beta2);

  // [1 + kRows rate_row(groups)] double, one memory for ever.
  const at::Tensor& tensor() const { return tensor_; }

  // Where the next step stands: behind `steps` successful ones, which took the schedules over `samples`; each more
  // will add `batch`.
  struct Place {
    int64_t steps = 0, samples = 0, batch = 0;
  };
  // Makes sure that the rows of the next step and of some behind it are those of `schedule`; writes them anew where
  // the old ones end or tell of other samples.
  void cover(const LrSchedule& schedule, const ParamGroups& groups, const Place& next);
  // The schedule has changed.
  void forget() { first_.reset(); }

 private:
  cuda::Target target_;
  at::Tensor tensor_;
  double beta1_ = 0, beta2_ = 0;
  std::optional<Place> first_;  // of the first row
};

}  // namespace metroplex::optim

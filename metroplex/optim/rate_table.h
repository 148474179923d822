// Learning rate and weight decay of every parameter group for the next successful steps, on the parameters' device: a
// step reads its row there (cuda/kernels/step_state.h), without the host.
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

  // [1 + kRows rate_row(groups)] double; its address never changes.
  const at::Tensor& tensor() const { return tensor_; }

  // The position of the next step: after `steps` successful steps, which consumed `samples`; each further one
  // consumes `batch`.
  struct Place {
    int64_t steps = 0, samples = 0, batch = 0;
  };
  // Ensures that the table covers the next step, with the rates of `schedule`. Rewrites it if it ends earlier or was
  // computed for other sample counts.
  void cover(const LrSchedule& schedule, const ParamGroups& groups, const Place& next);
  // To be called when the schedule has changed.
  void forget() { first_.reset(); }

 private:
  cuda::Target target_;
  at::Tensor tensor_;
  double beta1_ = 0, beta2_ = 0;
  std::optional<Place> first_;  // of the first row
};

}  // namespace metroplex::optim

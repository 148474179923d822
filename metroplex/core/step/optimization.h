// The optimizer of one rank, with its schedules and loss scale. Empty in a forward-only assembly.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "distributed/slice.h"
#include "optim/grad_scaler.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/param_groups.h"
#include "optim/step_state.h"

namespace metroplex::step {

struct Optimization {
  std::vector<distributed::Shard> trained;  // the subset of RankModel::slices that is not frozen, with gradients
  std::unique_ptr<optim::ParamGroups> param_groups;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::LrSchedule> schedule;
  std::optional<optim::GradScaler> scaler;  // update rule of the loss scale; the scale itself is in step_state
  optim::StepState step_state;              // loss scale and step decisions, on the device
  optim::RateTable rates;                   // learning rates of the next steps, on the device
  int64_t steps = 0;                        // number of updates, as of the last outcome that the host has read
};

}  // namespace metroplex::step

// A run of the recipe from its initial to its final weights, as the product trains it.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "comm/world.h"
#include "parity/spec.h"
#include "step/step.h"

namespace metroplex::parity {

// Deliberate bugs: every comparison of runs must detect each of them.
enum class Fault {
  none,
  no_update,            // parameters keep their values
  learning_rate,        // 10 % too high
  zero_layer_gradient,  // of layer 0
  half_main_params,     // main parameters rounded to the parameters' type after every step
  no_clip,
  absent_rank,  // rank 1 does not call the last step; the run must end after run.distributed_timeout_minutes
};
// "no_update" and so on; throws base::Error for another word.
Fault parse_fault(const std::string& name);

// `exact`: the same run in float64 from the same weights (rounded to the run's type); it skips the steps that the
// recorded run skipped. It is the result of a program without rounding.
struct ReplayOptions {
  bool exact = false;
  Fault fault = Fault::none;
};

struct Trajectory {
  std::vector<step::StepOutcome> steps;
  // Name -> whole tensor in float64, on rank 0 only. Gradients of the first step as the optimizer reads them, before
  // clipping; empty if its update was skipped.
  std::map<std::string, at::Tensor> gradients, parameters;
};

// Collective.
Trajectory replay(const Spec& spec, const comm::World& world, const ReplayOptions& options);

}  // namespace metroplex::parity

// One training step and one evaluation, over an Assembly. Collective over the world.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "nn/microbatch.h"
#include "train/assemble.h"

namespace metroplex::train {

struct StepInput {
  const std::vector<nn::Microbatch>& batches;  // one a microbatch, the same number on every rank
  int64_t iteration = 0;                       // of this step, from 1: named in errors
  int64_t consumed_samples = 0;                // before this step: where the schedules stand
  bool stop = false;                           // this rank was asked to end
  std::function<void()> on_gradients;          // called when the gradients are final, before clipping; may be empty
};

struct StepOutcome {
  double loss = 0;  // over the global batch
  double lr = 0;
  double grad_norm = 0;
  int64_t num_zeros = -1;
  double tokens = 0;  // that counted in the loss
  bool stop = false;  // some rank was asked to end: true on all of them or on none
};

// Forward, backward, reduction, clipping, update. A loss or gradient norm that is not finite throws before anything
// is updated, naming rank, iteration and microbatch.
StepOutcome train_step(Assembly& assembly, const StepInput& input);

// Mean loss over `batches` of every data-parallel rank; nothing is updated. The same number on every rank.
struct LossSum {
  double loss = 0;  // weighted by `weight`
  double weight = 0;
  double mean() const { return weight > 0 ? loss / weight : 0.0; }
};
LossSum evaluate_step(Assembly& assembly, const std::vector<nn::Microbatch>& batches);

}  // namespace metroplex::train

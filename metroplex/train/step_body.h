// What a step issues once the host has written ahead what it knows: the part that a graph can hold.
#pragma once

#include <functional>
#include <vector>

#include "nn/microbatch.h"
#include "train/step_vector.h"

namespace metroplex::train {

struct Assembly;
class Timers;

struct BodyOptions {
  Timers* const* timers = nullptr;  // to those of the step under way, asked again in every replay; may be null
  std::function<void(double)> on_gradients;  // StepInput::on_gradients
};

// The host reads nothing of what they compute, but for on_gradients.
StepVector training_body(Assembly& assembly, const std::vector<nn::Microbatch>& batches, const BodyOptions& options);
StepVector evaluation_body(Assembly& assembly, const std::vector<nn::Microbatch>& batches);

}  // namespace metroplex::train

// One training step and one evaluation, over an Assembly. Collective over the world.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "nn/microbatch.h"
#include "train/assemble.h"
#include "train/step_vector.h"
#include "train/timers.h"

namespace metroplex::train {

struct StepInput {
  const std::vector<nn::Microbatch>& batches;  // one a microbatch, as many on every rank but with hybrid cp
  int64_t iteration = 0;                       // of this step, from 1: named in errors
  int64_t scheduled_samples = 0;               // of successful updates before this step: where the schedules stand
  bool stop = false;                           // this rank was asked to end
  // Called when the gradients are final, before clipping, with the factor that unscales them; may be empty.
  std::function<void(double)> on_gradients;
  Timers* timers = nullptr;  // the parts of the step, under Megatron's names; may be null
  bool eager = false;        // run without the assembly's graphs, because observers are attached
};

struct StepOutcome {
  double loss = 0;                      // over the global batch
  std::map<std::string, double> terms;  // loss terms by name, over the global batch
  double lr = 0;
  double grad_norm = 0;   // unscaled, before clipping
  double loss_scale = 1;  // that this step used
  bool updated = true;    // false: parameters, moments and schedules stay as they were
  std::string skipped;    // why not updated
  bool overflow = false;  // skipped because expert rows exceeded a buffer: its gradients are meaningless
  std::string repeated;   // why the step ran a second time, with the rows of experts sent by counts of the host
  int64_t num_zeros = -1;
  double tokens = 0;  // that counted in the loss
  bool stop = false;  // some rank was asked to end: true on all of them or on none
};

// Forward, backward, reduction, overflow check, clipping, update (Megatron's MixedPrecisionOptimizer.step). With a
// loss scale, gradients that are not finite skip the update. Without one, a loss or gradient that is not finite
// throws before anything is updated, naming rank, iteration, parameter and microbatch. A gradient norm above
// precision.grad_norm_skip_threshold skips the update too. It is the two functions below, one after the other.
StepOutcome train_step(Assembly& assembly, const StepInput& input);

// What a step leaves on the device.
struct EnqueuedStep {
  StepVector vector;
};
// The host writes rates, tokens and the stop flag; all else is the body of the step, which runs as it is or, where
// the assembly has graphs, as the graph of the step. The host reads nothing of what it computes, so on a GPU it has
// merely been enqueued; it runs on the meta device too. Exceptions: on_gradients, for which the host waits;
// optim.optimizer_cpu_offload, whose step the host does; in the first step the ranks agree on the names of loss
// terms.
EnqueuedStep enqueue_step(Assembly& assembly, const StepInput& input);
// Waits for it, reads its vector, once, and throws or says how it went. `input` is the same. Where rows of experts
// found no room in static buffers nothing has been updated: model.moe_overflow_policy says whether the step runs
// again here, eagerly, or throws base::Error("moe").
StepOutcome read_outcome(Assembly& assembly, const StepInput& input, const EnqueuedStep& step);

// Timers of level 2 for the actions of the pipeline, from now on: of steps that run eagerly. `timers` outlives the
// assembly's runs.
void time_actions(Assembly& assembly, Timers& timers);

// Mean loss over `batches` of every data-parallel rank; nothing is updated. The same on every rank. `stop`: this rank
// was asked to end. Where rows of experts found no room: as in read_outcome.
struct LossSum {
  double loss = 0;  // weighted by `weight`
  double weight = 0;
  bool stop = false;  // some rank was asked to end
  double mean() const { return weight > 0 ? loss / weight : 0.0; }
};
LossSum evaluate_step(Assembly& assembly, const std::vector<nn::Microbatch>& batches, bool stop = false);

// What surrounds the run of the executor that makes the gradients, in a step and in the search for the microbatch
// whose gradient is not finite (step_errors.h).

// Before the first forward of so many microbatches: gradients and the counts of a step start at zero.
void begin_gradients(Assembly& assembly, int64_t microbatches);

// Waits for the reductions over the data-parallel ranks, and sums partial and shared gradients over the ranks that
// hold the summands. Collective.
void finish_gradients(Assembly& assembly);

}  // namespace metroplex::train

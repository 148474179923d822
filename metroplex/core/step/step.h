// Training and evaluation steps over an Assembly, collective over the world.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "nn/microbatch.h"
#include "step/assemble.h"
#include "step/step_vector.h"
#include "step/timers.h"

namespace metroplex::step {

struct StepInput {
  const std::vector<nn::Microbatch>& batches;  // same number on every rank, except with hybrid context parallelism
  int64_t iteration = 0;                       // of this step, from 1; for error messages
  int64_t scheduled_samples = 0;               // of successful updates before this step; position of the schedules
  bool stop = false;                           // a stop of this rank was requested
  // The step calls it with the unscaling factor when gradients are final, before clipping; may be empty.
  std::function<void(double)> on_gradients;
  Timers* timers = nullptr;  // parts of the step, under Megatron's names; may be null
  bool eager = false;        // run without the assembly's graphs, because observers are attached
};

struct StepOutcome {
  double loss = 0;                      // over the global batch
  std::map<std::string, double> terms;  // loss terms by name, over the global batch
  double lr = 0;
  double grad_norm = 0;   // unscaled, before clipping
  double loss_scale = 1;  // used in this step
  bool updated = true;    // false: parameters, moments and schedules are unchanged
  std::string skipped;    // reason if not updated
  bool overflow = false;  // skipped because expert rows exceeded a buffer: its gradients are invalid
  std::string repeated;   // reason why the step ran twice; expert rows of the second run are sent by host counts
  int64_t num_zeros = -1;
  double tokens = 0;  // counted in the loss
  bool stop = false;  // a stop of any rank was requested; same on all ranks
};

// Forward, backward, reduction, overflow check, clipping, update (Megatron's MixedPrecisionOptimizer.step). With a
// loss scale, non-finite gradients skip the update. Without one, a non-finite loss or gradient throws before any
// update, with rank, iteration, parameter and microbatch. A gradient norm above precision.grad_norm_skip_threshold
// also skips the update. Equals enqueue_step() followed by read_outcome().
StepOutcome train_step(Assembly& assembly, const StepInput& input);

struct EnqueuedStep {
  StepVector vector;
};
// Writes rates, tokens and the stop flag from the host, then runs the body of the step. The body runs eagerly or, if
// the assembly has graphs, as the step's graph. The host reads no results, so on a GPU the step is only enqueued.
// Also runs on the meta device. The host waits in three cases: on_gradients, optim.optimizer_cpu_offload, and the
// first step, in which the ranks agree on loss-term names.
EnqueuedStep enqueue_step(Assembly& assembly, const StepInput& input);
// Waits for the step and reads its vector once; throws or returns the outcome. `input` must be the same. If expert
// rows exceeded static buffers, nothing has been updated. By model.moe_overflow_policy the step then reruns eagerly
// here, or base::Error("moe") is thrown.
StepOutcome read_outcome(Assembly& assembly, const StepInput& input, const EnqueuedStep& step);

// Adds level-2 timers for the pipeline actions of eager steps. `timers` must outlive the assembly's runs.
void time_actions(RankModel& model, const CapturedGraphs& graphs, Timers& timers);

// Mean loss over the `batches` of all data-parallel ranks, without an update. The result is the same on every rank.
// `stop`: a stop of this rank was requested. Buffer overflows are handled as in read_outcome().
struct LossSum {
  double loss = 0;  // weighted by `weight`
  double weight = 0;
  bool stop = false;  // a stop of any rank was requested
  double mean() const { return weight > 0 ? loss / weight : 0.0; }
};
LossSum evaluate_step(Assembly& assembly, const std::vector<nn::Microbatch>& batches, bool stop = false);

// Steps before and after the executor run that computes gradients. train_step() and the search for the microbatch
// with non-finite gradients use them (step_errors.h).

// Zeroes the gradients and step counts before the first forward of this number of microbatches.
void begin_gradients(RankModel& model, int64_t microbatches);

// Waits for the data-parallel reductions. Then sums partial and shared gradients over the ranks that hold the
// summands. Collective.
void finish_gradients(const ProcessContext& process, RankModel& model, const Optimization& optimization);

}  // namespace metroplex::step

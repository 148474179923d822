#include "train/step_graphs.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "comm/collectives.h"
#include "train/assemble.h"
#include "pipeline/static_batches.h"
#include "train/step.h"
#include "train/step_body.h"

namespace metroplex::train {

struct StepGraphs::One {
  std::unique_ptr<cuda::Graph> graph;
  std::function<StepVector(const std::vector<nn::Microbatch>&)> body;
  pipeline::StaticBatches inputs;
  at::Tensor step_inputs;  // Assembly's, of this graph: the other one may have another number of microbatches
  StepVector vector;       // of the last step; once captured, where every replay leaves it
  int64_t steps = 0;
};

StepGraphs::StepGraphs(Assembly& assembly, cuda::GraphDevice& device)
    : a_(assembly), device_(device), pool_(device.make_pool()) {
  const auto make = [&](std::function<StepVector(const std::vector<nn::Microbatch>&)> body) {
    return std::make_unique<One>(
        One{device.make_graph(pool_), std::move(body), pipeline::StaticBatches(assembly.world->device()), {}, {}});
  };
  // In a capture of a GPU nobody may wait for it, as timers do.
  const bool times = device.recorder() != nullptr;
  training_ = make([this, times](const auto& batches) {
    return training_body(a_, batches, {times ? &timers_ : nullptr, {}});
  });
  evaluation_ = make([this](const auto& batches) { return evaluation_body(a_, batches); });
}

StepGraphs::~StepGraphs() = default;

// The body begins and ends with parameters that are gathered whole and with nothing under way: what was started
// before it would be waited for in the graph, and what it left to the next step would be missing in every replay.
StepVector StepGraphs::run(One& one, const std::vector<nn::Microbatch>& batches, bool stop) {
  MPX_CHECK(
      !a_.variable_lengths, "cuda graph",
      "microbatches differ in length, which the ranks of the pipeline tell each other in every step: a graph has "
      "one length; pad them, or set train.cuda_graph_impl: none");
  a_.step_inputs = one.step_inputs;
  write_step_inputs(a_, batches, stop);
  one.step_inputs = a_.step_inputs;
  if (one.inputs.fits(batches)) {
    one.inputs.fill(batches);
  } else {
    one.graph->reset();
    one.inputs.make(batches);
  }
  if (one.graph->captured()) {
    one.graph->replay();
    return one.vector;
  }
  one.vector = {};
  const auto body = [&] {
    one.vector = one.body(one.inputs.batches());
    a_.families.settle();
  };
  if (one.steps++ < std::max<int64_t>(1, a_.config.train.cuda_graph_warmup_steps)) {
    device_.run_aside(body);
    return one.vector;
  }
  comm::barrier(a_.groups().world);
  cuda::capture(*one.graph, body);
  return one.vector;
}

EnqueuedStep StepGraphs::train(const StepInput& input) {
  write_rates(a_, input);
  timers_ = input.timers;
  const auto step = [&] { return run(*training_, input.batches, input.stop); };
  EnqueuedStep enqueued{timers_ != nullptr ? timers_->measure("step-graph", 1, step) : step()};
  timers_ = nullptr;
  return enqueued;
}

StepVector StepGraphs::evaluate(const std::vector<nn::Microbatch>& batches, bool stop) {
  return run(*evaluation_, batches, stop);
}

StepGraphs::Sizes StepGraphs::sizes() const {
  Sizes sizes;
  sizes.training = training_->graph->size();
  sizes.evaluation = evaluation_->graph->size();
  sizes.static_inputs = training_->inputs.bytes() + evaluation_->inputs.bytes();
  sizes.pool = pool_->bytes();
  return sizes;
}

}  // namespace metroplex::train

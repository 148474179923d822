#include "step/step_graphs.h"

#include <algorithm>

#include "base/error.h"
#include "comm/collectives.h"
#include "graph/graphed_callable.h"
#include "pipeline/static_batches.h"
#include "step/assemble.h"
#include "step/step.h"

namespace metroplex::step {

struct StepGraphs::CapturedStep {
  // The body begins and ends with gathered parameters and no collective in flight. A collective started earlier would
  // be waited for inside the graph. A collective left to the next step would be waited for only once, during the
  // capture.
  CapturedStep(const ProcessContext& process, RankModel& model, graph::GraphDevice& device,
               std::shared_ptr<graph::GraphPool> pool)
      : inputs(process.world->device()),
        step(device,
             [this, &model](const graph::GraphedCallable::Tensors&) {
               vector = {};
               vector = (*body)(inputs.batches());
               model.families.finish_gathers();
               return graph::GraphedCallable::Tensors{};
             },
             {}, {std::max<int64_t>(1, process.config.train.cuda_graph_warmup_steps), std::move(pool), [&process] {
                    comm::barrier(process.groups().world);
                  }}) {}

  pipeline::StaticBatches inputs;
  at::Tensor step_inputs, loss_factors;  // of StepBuffers; the other graph may have another number of microbatches
  const Body* body = nullptr;            // of the current step
  StepVector vector;                     // of the last step; after the capture, the output of every replay
  graph::GraphedCallable step;
};

StepGraphs::StepGraphs(const ProcessContext& process, RankModel& model, StepBuffers& step_buffers,
                       graph::GraphDevice& device)
    : process_(process),
      model_(model),
      step_buffers_(step_buffers),
      pool_(device.make_pool()),
      training_(std::make_unique<CapturedStep>(process, model, device, pool_)),
      evaluation_(std::make_unique<CapturedStep>(process, model, device, pool_)),
      has_timers_(device.recorder() != nullptr) {}

StepGraphs::~StepGraphs() = default;

StepVector StepGraphs::run(CapturedStep& one, const std::vector<nn::Microbatch>& batches, bool stop,
                           const Body& body) {
  MPX_CHECK(
      !model_.variable_lengths, "cuda graph",
      "the microbatches of a step differ in length, and a captured step has one length for all; pad them, or set "
      "train.cuda_graph_impl: none");
  // Finishes the collectives that an eager step left in flight. The graph must neither wait for them nor race with
  // them.
  model_.families.finish_gathers();
  step_buffers_.inputs = one.step_inputs;
  step_buffers_.loss_factors = one.loss_factors;
  write_step_inputs(process_, step_buffers_, batches, stop);
  if (one.inputs.fits(batches)) {
    one.inputs.fill(batches);
  } else {
    one.step.reset();
    one.inputs.allocate(batches);
  }
  one.body = &body;
  one.step({});
  one.body = nullptr;
  one.step_inputs = step_buffers_.inputs;
  one.loss_factors = step_buffers_.loss_factors;
  return one.vector;
}

StepVector StepGraphs::train(const StepInput& input, const Body& body) {
  timers_ = input.timers;
  const auto step = [&] { return run(*training_, input.batches, input.stop, body); };
  StepVector vector = timers_ != nullptr ? timers_->measure("step-graph", 1, step) : step();
  timers_ = nullptr;
  return vector;
}

StepVector StepGraphs::evaluate(const std::vector<nn::Microbatch>& batches, bool stop, const Body& body) {
  return run(*evaluation_, batches, stop, body);
}

bool StepGraphs::capturing() const { return training_->step.capturing() || evaluation_->step.capturing(); }

StepGraphs::Sizes StepGraphs::sizes() const {
  Sizes sizes;
  sizes.training = training_->step.size();
  sizes.evaluation = evaluation_->step.size();
  sizes.static_inputs = training_->inputs.bytes() + evaluation_->inputs.bytes();
  sizes.pool = pool_->bytes();
  return sizes;
}

}  // namespace metroplex::step

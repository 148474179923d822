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
  CapturedStep(Assembly& assembly, graph::GraphDevice& device, std::shared_ptr<graph::GraphPool> pool)
      : inputs(assembly.world->device()),
        step(device,
             [this, &assembly](const graph::GraphedCallable::Tensors&) {
               vector = {};
               vector = (*body)(inputs.batches());
               assembly.families.finish_gathers();
               return graph::GraphedCallable::Tensors{};
             },
             {}, {std::max<int64_t>(1, assembly.config.train.cuda_graph_warmup_steps), std::move(pool), [&assembly] {
                    comm::barrier(assembly.groups().world);
                  }}) {}

  pipeline::StaticBatches inputs;
  at::Tensor step_inputs, loss_factors;  // of Assembly; the other graph may have another number of microbatches
  const Body* body = nullptr;            // of the current step
  StepVector vector;                     // of the last step; after the capture, the output of every replay
  graph::GraphedCallable step;
};

StepGraphs::StepGraphs(Assembly& assembly, graph::GraphDevice& device)
    : a_(assembly),
      pool_(device.make_pool()),
      training_(std::make_unique<CapturedStep>(a_, device, pool_)),
      evaluation_(std::make_unique<CapturedStep>(a_, device, pool_)),
      has_timers_(device.recorder() != nullptr) {}

StepGraphs::~StepGraphs() = default;

StepVector StepGraphs::run(CapturedStep& one, const std::vector<nn::Microbatch>& batches, bool stop,
                           const Body& body) {
  MPX_CHECK(
      !a_.variable_lengths, "cuda graph",
      "the microbatches of a step differ in length, and a captured step has one length for all; pad them, or set "
      "train.cuda_graph_impl: none");
  // Finishes the collectives that an eager step left in flight. The graph must neither wait for them nor race with
  // them.
  a_.families.finish_gathers();
  a_.step_inputs = one.step_inputs;
  a_.loss_factors = one.loss_factors;
  write_step_inputs(a_, batches, stop);
  if (one.inputs.fits(batches)) {
    one.inputs.fill(batches);
  } else {
    one.step.reset();
    one.inputs.allocate(batches);
  }
  one.body = &body;
  one.step({});
  one.body = nullptr;
  one.step_inputs = a_.step_inputs;
  one.loss_factors = a_.loss_factors;
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

#include "train/step_graphs.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "comm/collectives.h"
#include "cuda/graph/graphed_callable.h"
#include "pipeline/static_batches.h"
#include "train/assemble.h"
#include "train/step.h"
#include "train/step_body.h"

namespace metroplex::train {

struct StepGraphs::One {
  using Body = std::function<StepVector(const std::vector<nn::Microbatch>&)>;

  // The body begins and ends with parameters that are gathered whole and with nothing under way: what was started
  // before it would be waited for in the graph, and what it left to the next step would be missing in every replay.
  One(Assembly& a, cuda::GraphDevice& device, std::shared_ptr<cuda::GraphPool> pool, Body body)
      : inputs(a.world->device()),
        step(device,
             [this, &a, body = std::move(body)](const cuda::GraphedCallable::Tensors&) {
               vector = {};
               vector = body(inputs.batches());
               a.families.settle();
               return cuda::GraphedCallable::Tensors{};
             },
             {}, {std::max<int64_t>(1, a.config.train.cuda_graph_warmup_steps), std::move(pool), [&a] {
                    comm::barrier(a.groups().world);
                  }}) {}

  pipeline::StaticBatches inputs;
  at::Tensor step_inputs, loss_factors;  // Assembly's: the other graph may have another number of microbatches
  StepVector vector;                     // of the last step; once captured, where every replay leaves it
  cuda::GraphedCallable step;
};

StepGraphs::StepGraphs(Assembly& assembly, cuda::GraphDevice& device) : a_(assembly), pool_(device.make_pool()) {
  // In a capture of a GPU nobody may wait for it, as timers do.
  const bool times = device.recorder() != nullptr;
  training_ = std::make_unique<One>(a_, device, pool_, [this, times](const auto& batches) {
    return training_body(a_, batches, {times ? &timers_ : nullptr, {}});
  });
  evaluation_ =
      std::make_unique<One>(a_, device, pool_, [this](const auto& batches) { return evaluation_body(a_, batches); });
}

StepGraphs::~StepGraphs() = default;

StepVector StepGraphs::run(One& one, const std::vector<nn::Microbatch>& batches, bool stop) {
  MPX_CHECK(
      !a_.variable_lengths, "cuda graph",
      "microbatches differ in length, which the ranks of the pipeline tell each other in every step: a graph has "
      "one length; pad them, or set train.cuda_graph_impl: none");
  // What a step that ran as it is left under way would be waited for in the graph, or be written under it.
  a_.families.settle();
  a_.step_inputs = one.step_inputs;
  a_.loss_factors = one.loss_factors;
  write_step_inputs(a_, batches, stop);
  if (one.inputs.fits(batches)) {
    one.inputs.fill(batches);
  } else {
    one.step.reset();
    one.inputs.make(batches);
  }
  one.step({});
  one.step_inputs = a_.step_inputs;
  one.loss_factors = a_.loss_factors;
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
  sizes.training = training_->step.size();
  sizes.evaluation = evaluation_->step.size();
  sizes.static_inputs = training_->inputs.bytes() + evaluation_->inputs.bytes();
  sizes.pool = pool_->bytes();
  return sizes;
}

}  // namespace metroplex::train

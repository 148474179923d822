#include "train/step_graphs.h"

#include "base/error.h"
#include "cuda/graph/graph.h"
#include "train/assemble.h"
#include "train/step.h"
#include "train/step_body.h"

namespace metroplex::train {
namespace {

// Undefined ones among them.
std::vector<at::Tensor*> tensors_of(nn::Microbatch& batch) {
  return {&batch.tokens,       &batch.labels,          &batch.loss_mask, &batch.position_ids,
          &batch.document_ids, &batch.sample_counters, &batch.step,      &batch.rows};
}

bool same_form(nn::Microbatch& one, nn::Microbatch& other) {
  const auto mine = tensors_of(one), its = tensors_of(other);
  for (size_t i = 0; i < mine.size(); ++i) {
    if (mine[i]->defined() != its[i]->defined()) return false;
    if (mine[i]->defined() &&
        (mine[i]->sizes() != its[i]->sizes() || mine[i]->scalar_type() != its[i]->scalar_type()))
      return false;
  }
  return one.training == other.training;
}

}  // namespace

struct StepGraphs::One {
  std::unique_ptr<cuda::Graph> graph;
  std::function<StepVector(const std::vector<nn::Microbatch>&)> body;
  std::vector<nn::Microbatch> inputs;  // that lie still
  StepVector vector;
  int64_t steps = 0;

  bool fits(std::vector<nn::Microbatch> batches) {
    if (batches.size() != inputs.size()) return false;
    for (size_t m = 0; m < inputs.size(); ++m) {
      if (!same_form(inputs[m], batches[m])) return false;
    }
    return true;
  }
  void take(std::vector<nn::Microbatch> batches) {
    if (!fits(batches)) {
      graph->reset();
      vector = {};
      inputs = batches;
      for (nn::Microbatch& batch : inputs)
        for (at::Tensor* x : tensors_of(batch))
          if (x->defined()) *x = x->clone();
      return;
    }
    for (size_t m = 0; m < inputs.size(); ++m) {
      const auto from = tensors_of(batches[m]), to = tensors_of(inputs[m]);
      for (size_t i = 0; i < to.size(); ++i)
        if (to[i]->defined()) to[i]->copy_(*from[i]);
      inputs[m].mask_sum = batches[m].mask_sum;
    }
  }
};

StepGraphs::StepGraphs(Assembly& assembly, cuda::GraphDevice& device)
    : a_(assembly), device_(device), pool_(device.make_pool()) {
  const auto make = [&](std::function<StepVector(const std::vector<nn::Microbatch>&)> body) {
    auto one = std::make_unique<One>();
    one->graph = device.make_graph(pool_);
    one->body = std::move(body);
    return one;
  };
  training_ = make([this](const auto& batches) { return training_body(a_, batches, {}); });
  evaluation_ = make([this](const auto& batches) { return evaluation_body(a_, batches); });
}

StepGraphs::~StepGraphs() = default;

// Parameters are whole at both ends: what is under way at the one would be waited for in the graph, and what is not
// gathered at the other would not be in a replay.
StepVector StepGraphs::run(One& one, const std::vector<nn::Microbatch>& batches, bool stop) {
  write_step_inputs(a_, batches, stop);
  one.take(batches);
  if (one.graph->captured()) {
    one.graph->replay();
    return one.vector;
  }
  if (one.steps++ < std::max<int64_t>(1, a_.config.train.cuda_graph_warmup_steps)) {
    device_.run_aside([&] { one.vector = one.body(one.inputs); });
    return one.vector;
  }
  one.vector = {};
  a_.families.settle();
  comm::barrier(a_.groups().world);
  cuda::capture(*one.graph, [&] {
    one.vector = one.body(one.inputs);
    a_.families.settle();
  });
  return one.vector;
}

EnqueuedStep StepGraphs::train(const StepInput& input) {
  write_rates(a_, input);
  return {run(*training_, input.batches, input.stop)};
}

StepVector StepGraphs::evaluate(const std::vector<nn::Microbatch>& batches, bool stop) {
  return run(*evaluation_, batches, stop);
}

StepGraphs::Sizes StepGraphs::sizes() const {
  Sizes sizes;
  sizes.training = training_->graph->size();
  sizes.evaluation = evaluation_->graph->size();
  for (const auto* one : {training_.get(), evaluation_.get()})
    for (nn::Microbatch& batch : const_cast<One*>(one)->inputs)
      for (const at::Tensor* x : tensors_of(batch)) sizes.static_inputs += x->defined() ? x->nbytes() : 0;
  sizes.pool = pool_->bytes();
  return sizes;
}

}  // namespace metroplex::train

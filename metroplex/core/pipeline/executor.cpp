#include "pipeline/executor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "base/error.h"
#include "comm/collectives.h"
#include "plan/pipeline_table.h"

namespace metroplex::pipeline {

using plan::Action;
using plan::ActionKind;

struct Executor::Step {
  const PipelineInput& in;
  PipelineOutput& result;
  plan::StagePlacement placement;
  int rank;              // row of the table
  bool splits_backward;  // weight gradients are separate actions

  plan::StagePlace place(const Action& action) const { return {rank, action.chunk}; }
  bool first(const Action& action) const { return placement.first(place(action)); }
  bool last(const Action& action) const { return placement.last(place(action)); }
  std::vector<BorderValue> inputs(const Action& action) const {
    return in.border.values_at(placement.stage_of(place(action)) - 1);
  }
  std::vector<BorderValue> outputs(const Action& action) const {
    return in.border.values_at(placement.stage_of(place(action)));
  }

  int graph_instance(const Action& action) const {
    if (in.graphs == nullptr) return -1;
    return in.graphs->instance_of.at(static_cast<size_t>(action.chunk)).at(static_cast<size_t>(action.microbatch));
  }
};

namespace {

int p2p_channel(ActionKind kind) { return plan::goes_forward(kind) ? comm::kForwardChannel : comm::kBackwardChannel; }

}  // namespace

int64_t BorderValue::bytes() const {
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : sizes) bytes *= size;
  return bytes;
}

std::vector<BorderValue> BorderShape::values_at(int border) const {
  std::vector<BorderValue> all;
  std::copy_if(values.begin(), values.end(), std::back_inserter(all),
               [&](const BorderValue& value) { return value.first <= border && border < value.end; });
  return all;
}

int64_t BorderShape::bytes(int border) const {
  int64_t bytes = 0;
  for (const BorderValue& value : values_at(border)) bytes += value.bytes();
  return bytes;
}

void Executor::P2pCall::wait() {
  handle.wait();
  done = true;
}

Executor::Executor(std::vector<Stage*> stages, comm::Group pp) : stages_(std::move(stages)), pp_(std::move(pp)) {}

int64_t Executor::border_bytes(const std::function<bool(const at::Tensor&)>& counts) const {
  int64_t bytes = 0;
  borders_.for_each([&](const Tensors& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined() && (!counts || counts(tensor))) bytes += static_cast<int64_t>(tensor.nbytes());
    }
  });
  return bytes;
}

PipelineOutput Executor::run(const PipelineInput& in) {
  PipelineOutput result;
  if (in.warmup_device != nullptr) {
    PipelineInput eager_input = in;
    eager_input.warmup_device = nullptr;
    in.warmup_device->run_on_capture_stream([&] { result = run(eager_input); });
    return result;
  }
  MPX_ASSERT(in.table.num_stages == pp_.size() && in.table.num_chunks == static_cast<int>(stages_.size()),
             "the table is for pp ", in.table.num_stages, " x ", in.table.num_chunks, " chunks, this rank has pp ",
             pp_.size(), " x ", stages_.size());
  MPX_ASSERT(static_cast<int>(in.batches.size()) == in.table.num_microbatches, "the table is for ",
             in.table.num_microbatches, " microbatches");
  const Step step{in, result, in.table.placement(), pp_.index(), in.table.splits_backward()};
  result.last.resize(step.placement.place_of(step.placement.stages() - 1).rank == step.rank ? in.batches.size() : 0);
  result.terms.resize(in.batches.size());
  const std::vector<Action>& actions = in.table.ranks[step.rank];
  for (size_t i = 0; i < actions.size();) {
    const auto start = std::chrono::steady_clock::now();
    const Action& action = actions[i];
    const size_t end = plan::is_p2p(action.kind) ? plan::call_end(actions, i) : i + (action.in_turns ? 2 : 1);
    const Key key{action.microbatch, action.chunk};
    if (plan::is_p2p(action.kind)) {
      exchange(step, &actions[i], &actions[i] + (end - i));
    } else if (action.in_turns) {
      const Action& back = actions[i + 1];
      if (!turns_) turns_ = std::make_unique<device::Turns>();
      // The backward begins: it reaches its first exchange with less computation.
      turns_->run([&] { run_backward(step, back); }, [&] { run_forward(step, action); });
    } else if (action.kind == ActionKind::forward) {
      run_forward(step, action);
    } else if (action.kind == ActionKind::backward) {
      run_backward(step, action);
    } else if (action.kind == ActionKind::weight) {
      weight(action);
    } else {
      borders_.release(key);
    }
    if (!observers_.empty()) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      const double share = elapsed.count() / static_cast<double>(end - i);
      for (size_t a = i; a < end; ++a) {
        for (const auto& [name, observer] : observers_) observer(actions[a], share);
      }
    }
    i = end;
  }
  borders_.finish();
  MPX_ASSERT(num_live() == 0, num_live(), " tensors of the pipeline outlived their step");
  return result;
}

void Executor::run_forward(const Step& step, const Action& action) {
  const nn::Values x = take_inputs(step, action);
  StageRun* const run = step.in.table.forward_only ? nullptr : &runs_[{action.microbatch, action.chunk}];
  put_outputs(step, action,
              stages_[action.chunk]->forward(x, step.in.batches[action.microbatch], run,
                                             &step.result.terms[action.microbatch], step.graph_instance(action)));
}

void Executor::run_backward(const Step& step, const Action& action) {
  const Key key{action.microbatch, action.chunk};
  StageRun run = take_run(key);
  const at::Tensor factor = step.in.loss_gradients.select(0, action.microbatch);
  const Tensors dy = output_gradients(step, action, factor);
  std::vector<nn::DeferredGradients>* const deferred = step.splits_backward ? &weights_[key] : nullptr;
  put_gradients(step, action, stages_[action.chunk]->backward(std::move(run), dy, factor, deferred));
}

nn::Values Executor::take_inputs(const Step& step, const Action& action) {
  nn::Values x;
  if (step.first(action)) return x;
  const std::vector<BorderValue> border = step.inputs(action);
  Tensors received = borders_.take_input({action.microbatch, action.chunk});
  for (size_t i = 0; i < border.size(); ++i) x.add(border[i].name, std::move(received[i]));
  return x;
}

void Executor::put_outputs(const Step& step, const Action& action, const nn::Values& y) {
  if (step.last(action)) {
    MPX_ASSERT(y.size() == 1, "the last stage gives a loss or logits, not ", y.size(), " values");
    // The next pass in the same graph instance overwrites the result of a graph.
    const at::Tensor& last = y.begin()->value.tensor();
    step.result.last[action.microbatch] = step.in.graphs != nullptr ? last.clone() : last;
    return;
  }
  const std::vector<BorderValue> border = step.outputs(action);
  const plan::StagePlace own = step.place(action), next = step.placement.neighbour(own, 1).value();
  Tensors sent_values;
  for (const auto& [name, value] : y) {
    const size_t i = sent_values.size();
    MPX_ASSERT(i < border.size() && border[i].name == name && border[i].dtype == value.tensor().scalar_type(),
               "the stage gives ", name, " where another value crosses the border");
    sent_values.push_back(next.rank == own.rank ? value.tensor() : value.tensor().contiguous());
  }
  MPX_ASSERT(sent_values.size() == border.size(), "the stage gives ", sent_values.size(), " of ", border.size(),
             " values");
  borders_.leave_output(action.microbatch, own, next, std::move(sent_values));
}

StageRun Executor::take_run(const Key& key) {
  auto run = runs_.extract(key);
  MPX_ASSERT(!run.empty(), "backward of microbatch ", key.first, " before its forward");
  return std::move(run.mapped());
}

Executor::Tensors Executor::output_gradients(const Step& step, const Action& action, const at::Tensor& factor) {
  if (!step.last(action)) return borders_.take_gradient({action.microbatch, action.chunk});
  return {factor.to(step.result.last[action.microbatch].scalar_type())};
}

void Executor::put_gradients(const Step& step, const Action& action, Tensors dx) {
  if (step.first(action)) return;
  const plan::StagePlace own = step.place(action), next = step.placement.neighbour(own, -1).value();
  // Sends a copy, so that the graph instance is free for the next pass while the send is in flight.
  const bool in_instance = step.in.graphs != nullptr && stages_[action.chunk]->regions().is_first_captured();
  const std::vector<BorderValue> border = step.inputs(action);
  for (size_t i = 0; i < dx.size() && next.rank != own.rank; ++i) {
    const BorderValue& value = border[i];
    if (!value.differentiable()) continue;
    // Nothing read this value, but the previous stage has posted a receive for its gradient.
    if (!dx[i].defined())
      dx[i] = at::zeros(border_sizes(step, value, action.microbatch), border_options(step, value));
    else dx[i] = in_instance ? dx[i].clone(at::MemoryFormat::Contiguous) : dx[i].contiguous();
  }
  borders_.leave_gradient(action.microbatch, own, next, std::move(dx));
}

void Executor::weight(const Action& action) {
  auto deferred = weights_.extract({action.microbatch, action.chunk});
  MPX_ASSERT(!deferred.empty(), "weight gradients of microbatch ", action.microbatch, " before its backward");
  for (nn::DeferredGradients& region_gradients : deferred.mapped()) nn::add_gradients(std::move(region_gradients));
}

at::TensorOptions Executor::border_options(const Step& step, const BorderValue& value) {
  return at::TensorOptions().dtype(value.dtype).device(step.in.batches[0].tokens.device());
}

// Returns the sizes of a tensor that crosses a border. Shapes are computed instead of sent, because every stage
// has every microbatch. A shape message would have to complete before the tensor's own call. With two calls per
// action, a table that passed verify() could deadlock.
std::vector<int64_t> Executor::border_sizes(const Step& step, const BorderValue& value, int microbatch) {
  std::vector<int64_t> sizes = value.sizes;
  if (!step.in.border.variable) return sizes;
  const at::Tensor &first = step.in.batches[0].tokens, &own = step.in.batches[static_cast<size_t>(microbatch)].tokens;
  MPX_CHECK(sizes[0] * own.size(1) % first.size(1) == 0, "data", "microbatch ", microbatch, " has ", own.size(1),
            " tokens a sample, which the ranks of a stage cannot share equally; pad it");
  sizes[0] = sizes[0] * own.size(1) / first.size(1);
  sizes[1] = own.size(0);
  return sizes;
}

void Executor::exchange(const Step& step, const Action* begin, const Action* end) {
  std::vector<comm::P2pOp> ops;
  for (const Action* action = begin; action != end; ++action) {
    const bool sends = plan::is_send(action->kind);
    const bool forward = plan::goes_forward(action->kind);
    const std::vector<BorderValue> border = forward == sends ? step.outputs(*action) : step.inputs(*action);
    Tensors& tensors = borders_.slot(*action);
    tensors.resize(border.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const BorderValue& value = border[i];
      if (!forward && !value.differentiable()) continue;
      if (!sends) tensors[i] = at::empty(border_sizes(step, value, action->microbatch), border_options(step, value));
      ops.push_back({sends, tensors[i], action->peer, p2p_channel(action->kind)});
    }
  }
  const auto call = std::make_shared<P2pCall>(P2pCall{comm::batch_p2p(std::move(ops), pp_)});
  for (const Action* action = begin; action != end; ++action) borders_.issued(*action, call);
}

}  // namespace metroplex::pipeline

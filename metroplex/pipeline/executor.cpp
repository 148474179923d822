#include "pipeline/executor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <chrono>

#include "base/error.h"
#include "comm/p2p.h"
#include "plan/rendezvous.h"

namespace metroplex::pipeline {

using plan::Action;
using plan::ActionKind;

struct Executor::Step {
  const plan::PipelineTable& table;
  const std::vector<nn::Microbatch>& batches;
  const at::Tensor& loss_gradients;
  const BorderShape& border;
  PipelineOutput& result;
  int rank;  // row of the table
  const plan::GraphPlan* graphs;

  int live_set(const Action& action) const {
    return graphs == nullptr
               ? -1
               : graphs->set_of.at(static_cast<size_t>(action.chunk)).at(static_cast<size_t>(action.microbatch));
  }
};

namespace {

int channel_of(ActionKind kind) { return plan::goes_forward(kind) ? comm::kForwardChannel : comm::kBackwardChannel; }

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  return bytes;
}

}  // namespace

int64_t BorderValue::bytes() const {
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : sizes) bytes *= size;
  return bytes;
}

int64_t BorderShape::bytes() const {
  int64_t bytes = 0;
  for (const BorderValue& value : values) bytes += value.bytes();
  return bytes;
}

void Executor::Call::wait() {
  handle.wait();
  done = true;
}

Executor::Executor(std::vector<Stage*> stages, comm::Group pp) : stages_(std::move(stages)), pp_(std::move(pp)) {}

int64_t Executor::border_bytes() const {
  int64_t bytes = 0;
  borders_.for_each([&](const Tensors& tensors) { bytes += bytes_of(tensors); });
  return bytes;
}

PipelineOutput Executor::run(const plan::PipelineTable& table, const std::vector<nn::Microbatch>& batches,
                             const at::Tensor& loss_gradients, const BorderShape& border,
                             const plan::GraphPlan* graphs) {
  MPX_ASSERT(table.num_stages == pp_.size() && table.num_chunks == static_cast<int>(stages_.size()),
             "the table is for pp ", table.num_stages, " x ", table.num_chunks, " chunks, this rank has pp ",
             pp_.size(), " x ", stages_.size());
  MPX_ASSERT(static_cast<int>(batches.size()) == table.num_microbatches, "the table is for ", table.num_microbatches,
             " microbatches");
  PipelineOutput result;
  const Step step{table, batches, loss_gradients, border, result, pp_.index(), graphs};
  result.last.resize(table.is_last_stage(step.rank, table.num_chunks - 1) ? batches.size() : 0);
  result.terms.resize(batches.size());
  const std::vector<Action>& actions = table.ranks[step.rank];
  for (size_t i = 0; i < actions.size();) {
    const auto start = std::chrono::steady_clock::now();
    const Action& action = actions[i];
    const size_t end = plan::is_p2p(action.kind) ? plan::call_end(actions, i) : i + 1;
    if (plan::is_p2p(action.kind)) {
      exchange(step, &actions[i], &actions[i] + (end - i));
    } else if (action.kind == ActionKind::forward) {
      forward(step, action);
    } else if (action.kind == ActionKind::backward) {
      backward(step, action);
    } else if (action.kind == ActionKind::free) {
      borders_.release({action.microbatch, action.chunk});
    } else {
      MPX_ASSERT(false, "action ", plan::action_name(action.kind), " has no interpreter");
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
  MPX_ASSERT(live() == 0, live(), " tensors of the pipeline outlived their step");
  return result;
}

void Executor::forward(const Step& step, const Action& action) {
  const Key key{action.microbatch, action.chunk};
  const auto& border = step.border.values;
  nn::Values x;
  if (!step.table.is_first_stage(step.rank, action.chunk)) {
    Tensors came = borders_.take_input(key);
    for (size_t i = 0; i < border.size(); ++i) x.add(border[i].name, std::move(came[i]));
  }
  StageRun* run = step.table.forward_only ? nullptr : &runs_[key];
  const nn::Values y = stages_[action.chunk]->forward(x, step.batches[action.microbatch], run,
                                                      &step.result.terms[action.microbatch], step.live_set(action));
  if (step.table.is_last_stage(step.rank, action.chunk)) {
    MPX_ASSERT(y.size() == 1, "the last stage gives a loss or logits, not ", y.size(), " values");
    // A captured one lies where the next microbatch of its live set leaves its own.
    const at::Tensor& last = y.begin()->value.tensor();
    step.result.last[action.microbatch] = step.graphs != nullptr ? last.clone() : last;
    return;
  }
  Tensors leave;
  for (const auto& [name, value] : y) {
    const size_t i = leave.size();
    MPX_ASSERT(i < border.size() && border[i].name == name && border[i].dtype == value.tensor().scalar_type(),
               "the stage gives ", name, " where another value crosses the border");
    leave.push_back(step.table.num_stages == 1 ? value.tensor() : value.tensor().contiguous());
  }
  MPX_ASSERT(leave.size() == border.size(), "the stage gives ", leave.size(), " of ", border.size(), " values");
  if (step.table.num_stages == 1) {
    borders_.hand_input({action.microbatch, action.chunk + 1}, std::move(leave));  // the next stage is ours too
  } else {
    borders_.make_output(key, std::move(leave));
  }
}

void Executor::backward(const Step& step, const Action& action) {
  const Key key{action.microbatch, action.chunk};
  const auto run = runs_.find(key);
  MPX_ASSERT(run != runs_.end(), "backward of microbatch ", key.first, " before its forward");
  const at::Tensor factor = step.loss_gradients.select(0, action.microbatch);
  Tensors dy;
  if (step.table.is_last_stage(step.rank, action.chunk)) {
    dy = {factor.to(step.result.last[action.microbatch].scalar_type())};
  } else {
    dy = borders_.take_gradient(key);
  }
  StageRun consumed = std::move(run->second);
  runs_.erase(run);
  Tensors dx = stages_[action.chunk]->backward(std::move(consumed), dy, factor);
  if (step.table.is_first_stage(step.rank, action.chunk)) return;
  if (step.table.num_stages == 1) {
    borders_.hand_gradient({action.microbatch, action.chunk - 1}, std::move(dx));
    return;
  }
  for (size_t i = 0; i < dx.size(); ++i) {
    const BorderValue& value = step.border.values[i];
    if (!value.differentiable()) continue;
    // A value that nothing after it read: the stage before waits for its gradient all the same.
    dx[i] = dx[i].defined() ? dx[i].contiguous()
                            : at::zeros(sizes_of(step, value, action.microbatch), options_of(step, value));
  }
  borders_.make_input_gradient(key, std::move(dx));
}

at::TensorOptions Executor::options_of(const Step& step, const BorderValue& value) {
  return at::TensorOptions().dtype(value.dtype).device(step.batches[0].tokens.device());
}

// Of a tensor that crosses a border. Every stage has every microbatch, so nobody has to be told: a message with the
// shape, waited for before the tensor's own call can be issued, makes two calls of one, and then neighbours can wait
// for each other under tables that are right.
std::vector<int64_t> Executor::sizes_of(const Step& step, const BorderValue& value, int microbatch) {
  std::vector<int64_t> sizes = value.sizes;
  if (!step.border.variable) return sizes;
  const at::Tensor &first = step.batches[0].tokens, &own = step.batches[static_cast<size_t>(microbatch)].tokens;
  MPX_CHECK(sizes[0] * own.size(1) % first.size(1) == 0, "data", "microbatch ", microbatch, " has ", own.size(1),
            " tokens a sample, which the ranks of a stage cannot share equally; pad it");
  sizes[0] = sizes[0] * own.size(1) / first.size(1);
  sizes[1] = own.size(0);
  return sizes;
}

void Executor::exchange(const Step& step, const Action* begin, const Action* end) {
  std::vector<comm::P2pOp> ops;
  for (const Action* a = begin; a != end; ++a) {
    const bool sends = plan::is_send(a->kind);
    Tensors& tensors = borders_.slot(*a);
    tensors.resize(step.border.values.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const BorderValue& value = step.border.values[i];
      if (!plan::goes_forward(a->kind) && !value.differentiable()) continue;
      if (!sends) tensors[i] = at::empty(sizes_of(step, value, a->microbatch), options_of(step, value));
      ops.push_back({sends, tensors[i], a->peer, channel_of(a->kind)});
    }
  }
  const auto flight = std::make_shared<Call>(Call{comm::batch_p2p(std::move(ops), pp_)});
  for (const Action* a = begin; a != end; ++a) borders_.issued(*a, flight);
}

}  // namespace metroplex::pipeline

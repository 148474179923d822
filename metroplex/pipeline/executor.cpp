#include "pipeline/executor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <chrono>

#include "base/error.h"
#include "comm/p2p.h"

namespace metroplex::pipeline {

using plan::Action;
using plan::ActionKind;

struct Executor::Step {
  const plan::PipelineTable& table;
  const std::vector<nn::Microbatch>& batches;
  const std::vector<double>& loss_gradients;
  const BorderShape& border;
  int rank;  // row of the table
};

namespace {

constexpr int64_t kMaxDims = 8;

int channel_of(ActionKind kind) {
  return kind == ActionKind::send_forward || kind == ActionKind::recv_forward ? comm::kForwardChannel
                                                                              : comm::kBackwardChannel;
}

at::Tensor pack_shape(const at::Tensor& tensor) {
  at::Tensor shape = at::zeros({kMaxDims + 1}, at::kLong);
  int64_t* values = shape.mutable_data_ptr<int64_t>();
  values[0] = tensor.dim();
  for (int64_t d = 0; d < tensor.dim(); ++d) values[d + 1] = tensor.size(d);
  return shape;
}

std::vector<int64_t> unpack_shape(const at::Tensor& shape) {
  const int64_t* values = shape.const_data_ptr<int64_t>();
  MPX_CHECK(values[0] >= 0 && values[0] <= kMaxDims, "pipeline", "a neighbour announced a tensor of ", values[0],
            " dimensions");
  return {values + 1, values + 1 + values[0]};
}

}  // namespace

Executor::Executor(std::vector<Stage*> stages, comm::Group pp) : stages_(std::move(stages)), pp_(std::move(pp)) {}

std::vector<at::Tensor> Executor::run(const plan::PipelineTable& table, const std::vector<nn::Microbatch>& batches,
                                      const std::vector<double>& loss_gradients, const BorderShape& border) {
  MPX_ASSERT(table.num_stages == pp_.size() && table.num_chunks == static_cast<int>(stages_.size()),
             "the table is for pp ", table.num_stages, " x ", table.num_chunks, " chunks, this rank has pp ",
             pp_.size(), " x ", stages_.size());
  MPX_ASSERT(static_cast<int>(batches.size()) == table.num_microbatches, "the table is for ", table.num_microbatches,
             " microbatches");
  const Step step{table, batches, loss_gradients, border, pp_.index()};
  const std::vector<Action>& actions = table.ranks[step.rank];
  std::vector<at::Tensor> losses(table.is_last_stage(step.rank, table.num_chunks - 1) ? batches.size() : 0);
  for (size_t i = 0; i < actions.size();) {
    const auto start = std::chrono::steady_clock::now();
    const Action& action = actions[i];
    size_t end = i + 1;
    if (plan::is_p2p(action.kind)) {
      while (end < actions.size() && action.batch >= 0 && actions[end].batch == action.batch &&
             plan::is_p2p(actions[end].kind))
        ++end;
      exchange(step, &actions[i], &actions[i] + (end - i));
    } else if (action.kind == ActionKind::forward) {
      forward(step, action, losses);
    } else if (action.kind == ActionKind::backward) {
      backward(step, action);
    } else if (action.kind == ActionKind::free) {
      const Key key{action.microbatch, action.chunk};
      const auto flight = outputs_in_flight_.find(key);
      if (flight != outputs_in_flight_.end()) {
        flight->second->wait();
        outputs_in_flight_.erase(flight);
      }
      outputs_.erase(key);
    } else {
      MPX_ASSERT(false, "action ", plan::action_name(action.kind), " has no interpreter");
    }
    if (observer_) observer_(action, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    i = end;
  }
  for (auto& [key, flight] : outputs_in_flight_) flight->wait();
  outputs_in_flight_.clear();
  outputs_.clear();
  for (auto& [flight, tensor] : gradients_leaving_) flight->wait();
  gradients_leaving_.clear();
  MPX_ASSERT(live() == 0, live(), " tensors of the pipeline outlived their step");
  return losses;
}

at::Tensor Executor::take(std::map<Key, at::Tensor>& from, std::map<Key, Flight>& flights, Key key) {
  const auto flight = flights.find(key);
  if (flight != flights.end()) {
    flight->second->wait();
    flights.erase(flight);
  }
  const auto found = from.find(key);
  MPX_ASSERT(found != from.end(), "microbatch ", key.first, " of chunk ", key.second, " runs before its tensor came");
  at::Tensor tensor = std::move(found->second);
  from.erase(found);
  return tensor;
}

void Executor::forward(const Step& step, const Action& action, std::vector<at::Tensor>& losses) {
  const Key key{action.microbatch, action.chunk};
  at::Tensor x;
  if (!step.table.is_first_stage(step.rank, action.chunk)) x = take(inputs_, inputs_in_flight_, key);
  StageRun* run = step.table.forward_only ? nullptr : &runs_[key];
  at::Tensor y = stages_[action.chunk]->forward(x, step.batches[action.microbatch], run);
  if (step.table.is_last_stage(step.rank, action.chunk)) {
    losses[action.microbatch] = y;
  } else if (step.table.num_stages == 1) {
    inputs_[{action.microbatch, action.chunk + 1}] = y;  // the next stage is ours too
  } else {
    outputs_[key] = y.contiguous();
  }
}

void Executor::backward(const Step& step, const Action& action) {
  const Key key{action.microbatch, action.chunk};
  const auto run = runs_.find(key);
  MPX_ASSERT(run != runs_.end(), "backward of microbatch ", key.first, " before its forward");
  at::Tensor dy;
  if (step.table.is_last_stage(step.rank, action.chunk)) {
    const bool wide = step.border.dtype == at::kDouble;
    dy = at::full({}, step.loss_gradients[action.microbatch], wide ? at::kDouble : at::kFloat);
  } else {
    dy = take(gradients_, gradients_in_flight_, key);
  }
  StageRun consumed = std::move(run->second);
  runs_.erase(run);
  at::Tensor dx = stages_[action.chunk]->backward(std::move(consumed), dy);
  if (step.table.is_first_stage(step.rank, action.chunk)) return;
  if (step.table.num_stages == 1) {
    gradients_[{action.microbatch, action.chunk - 1}] = dx;
  } else {
    input_gradients_[key] = dx.contiguous();
  }
}

at::Tensor& Executor::incoming_slot(const Action& action) {
  const Key key{action.microbatch, action.chunk};
  return action.kind == ActionKind::recv_forward ? inputs_[key] : gradients_[key];
}

at::Tensor Executor::outgoing_tensor(const Action& action) {
  const Key key{action.microbatch, action.chunk};
  auto& from = action.kind == ActionKind::send_forward ? outputs_ : input_gradients_;
  const auto found = from.find(key);
  MPX_ASSERT(found != from.end(), "nothing to send for microbatch ", key.first, " of chunk ", key.second);
  return found->second;
}

void Executor::exchange(const Step& step, const Action* begin, const Action* end) {
  for (auto& [flight, tensor] : gradients_leaving_) flight->wait();
  gradients_leaving_.clear();
  std::vector<comm::P2pOp> ops;
  for (const Action* a = begin; a != end; ++a) {
    if (plan::is_send(a->kind)) {
      const at::Tensor tensor = outgoing_tensor(*a);
      if (step.border.variable) ops.push_back({true, pack_shape(tensor), a->peer, channel_of(a->kind)});
      ops.push_back({true, tensor, a->peer, channel_of(a->kind)});
    } else if (!step.border.variable) {
      at::Tensor& slot = incoming_slot(*a);
      slot = at::empty(step.border.sizes,
                       at::TensorOptions().dtype(step.border.dtype).device(step.batches[0].tokens.device()));
      ops.push_back({false, slot, a->peer, channel_of(a->kind)});
    }
  }
  const auto flight = std::make_shared<comm::Handle>(comm::batch_p2p(std::move(ops), pp_));
  for (const Action* a = begin; a != end; ++a) {
    const Key key{a->microbatch, a->chunk};
    if (a->kind == ActionKind::send_forward) {
      outputs_in_flight_[key] = flight;
    } else if (a->kind == ActionKind::send_backward) {
      gradients_leaving_.emplace_back(flight, std::move(input_gradients_[key]));
      input_gradients_.erase(key);
    } else if (step.border.variable) {
      receive_variable(step, *a);
    } else {
      (a->kind == ActionKind::recv_forward ? inputs_in_flight_ : gradients_in_flight_)[key] = flight;
    }
  }
}

void Executor::receive_variable(const Step& step, const Action& action) {
  at::Tensor shape = at::zeros({kMaxDims + 1}, at::kLong);
  comm::batch_p2p({{false, shape, action.peer, channel_of(action.kind)}}, pp_).wait();
  at::Tensor& slot = incoming_slot(action);
  slot = at::empty(unpack_shape(shape),
                   at::TensorOptions().dtype(step.border.dtype).device(step.batches[0].tokens.device()));
  comm::batch_p2p({{false, slot, action.peer, channel_of(action.kind)}}, pp_).wait();
}

}  // namespace metroplex::pipeline

#include "pipeline/executor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

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

int channel_of(ActionKind kind) {
  return kind == ActionKind::send_forward || kind == ActionKind::recv_forward ? comm::kForwardChannel
                                                                              : comm::kBackwardChannel;
}

}  // namespace

void Executor::Call::wait() {
  handle.wait();
  done = true;
}

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
      release({action.microbatch, action.chunk});
    } else {
      MPX_ASSERT(false, "action ", plan::action_name(action.kind), " has no interpreter");
    }
    if (observer_) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      const double share = elapsed.count() / static_cast<double>(end - i);
      for (size_t a = i; a < end; ++a) observer_(actions[a], share);
    }
    i = end;
  }
  drop_sent(0);
  MPX_ASSERT(live() == 0, live(), " tensors of the pipeline outlived their step");
  return losses;
}

at::Tensor Executor::take(std::map<Key, at::Tensor>& from, std::map<Key, Flight>& flights, Key key) {
  const auto flight = flights.find(key);
  if (flight != flights.end()) {
    flight->second->wait();
    flights.erase(flight);
    drop_sent(leaving_.size());  // what went with the same call
  }
  const auto found = from.find(key);
  MPX_ASSERT(found != from.end(), "microbatch ", key.first, " of chunk ", key.second, " runs before its tensor came");
  at::Tensor tensor = std::move(found->second);
  from.erase(found);
  return tensor;
}

// The output has been sent, or is not sent at all.
void Executor::release(Key key) {
  const auto output = outputs_.find(key);
  const auto flight = outputs_in_flight_.find(key);
  if (output != outputs_.end() && flight != outputs_in_flight_.end())
    leave(std::move(flight->second), std::move(output->second));
  if (output != outputs_.end()) outputs_.erase(output);
  if (flight != outputs_in_flight_.end()) outputs_in_flight_.erase(flight);
}

void Executor::leave(Flight flight, at::Tensor tensor) {
  leaving_.emplace_back(std::move(flight), std::move(tensor));
  drop_sent(kMostLeaving);
}

void Executor::drop_sent(size_t most_left) {
  const auto drop_done = [&] { std::erase_if(leaving_, [](const auto& sent) { return sent.first->done; }); };
  drop_done();
  while (leaving_.size() > most_left) {
    leaving_.front().first->wait();
    drop_done();
  }
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
    dy = at::full({}, step.loss_gradients[action.microbatch],
                  at::TensorOptions().dtype(wide ? at::kDouble : at::kFloat).device(step.batches[0].tokens.device()));
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

// Of a tensor that crosses a border. Every stage has every microbatch, so nobody has to be told: a message with the
// shape, waited for before the tensor's own call can be issued, makes two calls of one, and then neighbours can wait
// for each other under tables that are right.
std::vector<int64_t> Executor::sizes_of(const Step& step, int microbatch) {
  std::vector<int64_t> sizes = step.border.sizes;
  if (!step.border.variable) return sizes;
  const at::Tensor &first = step.batches[0].tokens, &own = step.batches[static_cast<size_t>(microbatch)].tokens;
  MPX_CHECK(sizes[0] * own.size(1) % first.size(1) == 0, "data", "microbatch ", microbatch, " has ", own.size(1),
            " tokens a sample, which the ranks of a stage cannot share equally; pad it");
  sizes[0] = sizes[0] * own.size(1) / first.size(1);
  sizes[1] = own.size(0);
  return sizes;
}

void Executor::exchange(const Step& step, const Action* begin, const Action* end) {
  const at::TensorOptions options =
      at::TensorOptions().dtype(step.border.dtype).device(step.batches[0].tokens.device());
  std::vector<comm::P2pOp> ops;
  for (const Action* a = begin; a != end; ++a) {
    const bool sends = plan::is_send(a->kind);
    if (!sends) incoming_slot(*a) = at::empty(sizes_of(step, a->microbatch), options);
    ops.push_back({sends, sends ? outgoing_tensor(*a) : incoming_slot(*a), a->peer, channel_of(a->kind)});
  }
  const auto flight = std::make_shared<Call>(Call{comm::batch_p2p(std::move(ops), pp_)});
  for (const Action* a = begin; a != end; ++a) {
    const Key key{a->microbatch, a->chunk};
    if (a->kind == ActionKind::send_forward) {
      outputs_in_flight_[key] = flight;
    } else if (a->kind == ActionKind::send_backward) {
      leave(flight, std::move(input_gradients_[key]));
      input_gradients_.erase(key);
    } else {
      (a->kind == ActionKind::recv_forward ? inputs_in_flight_ : gradients_in_flight_)[key] = flight;
    }
  }
}

}  // namespace metroplex::pipeline

// The tensors of one rank that cross stage borders. A tensor is held from the action that produces or receives it
// until the action that uses it or completes its send. The tensors held after each action follow from the table
// alone, not from timing. The executor stores tensors here; the memory replay stores their bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/pipeline_table.h"

namespace metroplex::plan {

// (microbatch, chunk)
using BorderKey = std::pair<int, int>;

constexpr bool goes_forward(ActionKind kind) {
  return kind == ActionKind::send_forward || kind == ActionKind::recv_forward;
}

// Content: the payload of one border for one microbatch. Call: one batched p2p call, shared by its actions, with
// `bool done` and a `wait()` that sets it.
template <class Content, class Call>
class Borders {
 public:
  using PendingCall = std::shared_ptr<Call>;
  // Maximum number of sent tensors that the schedule has freed but that may still be in flight. An overlapped
  // schedule has one output and one gradient in flight, so the limit is two. Freeing another one waits for the
  // oldest send.
  static constexpr size_t kMostLeaving = 2;

  // Stores the result of the stage at `own` for the stage at `next`. If this rank holds both stages, it is the input
  // or gradient of the next action there; otherwise it will be sent.
  void leave_output(int microbatch, StagePlace own, StagePlace next, Content content) {
    if (next.rank == own.rank) inputs_[{microbatch, next.chunk}] = std::move(content);
    else outputs_[{microbatch, own.chunk}] = std::move(content);
  }
  void leave_gradient(int microbatch, StagePlace own, StagePlace next, Content content) {
    if (next.rank == own.rank) gradients_[{microbatch, next.chunk}] = std::move(content);
    else input_gradients_[{microbatch, own.chunk}] = std::move(content);
  }

  // Returns the storage that a p2p action sends from or receives into.
  Content& slot(const Action& action) {
    const BorderKey key{action.microbatch, action.chunk};
    if (!is_send(action.kind)) return (goes_forward(action.kind) ? inputs_ : gradients_)[key];
    auto& from = goes_forward(action.kind) ? outputs_ : input_gradients_;
    const auto found = from.find(key);
    MPX_ASSERT(found != from.end(), "nothing to send for microbatch ", key.first, " of chunk ", key.second);
    return found->second;
  }
  void issued(const Action& action, const PendingCall& call) {
    const BorderKey key{action.microbatch, action.chunk};
    if (action.kind == ActionKind::send_forward) {
      output_calls_[key] = call;
    } else if (action.kind == ActionKind::send_backward) {
      leave(call, std::move(input_gradients_[key]), {});
      input_gradients_.erase(key);
    } else {
      (action.kind == ActionKind::recv_forward ? input_calls_ : gradient_calls_)[key] = call;
    }
  }
  // Takes the tensor for a compute action; waits for its receive.
  Content take_input(BorderKey key) { return take(inputs_, input_calls_, key); }
  Content take_gradient(BorderKey key) {
    Content gradient = take(gradients_, gradient_calls_, key);
    arrived(key);
    return gradient;
  }
  // Implements the action `free`: the output has been issued for sending or is not sent at all.
  void release(BorderKey key) {
    const auto output = outputs_.find(key);
    const auto call = output_calls_.find(key);
    if (output != outputs_.end() && call != output_calls_.end())
      leave(std::move(call->second), std::move(output->second), key);
    if (output != outputs_.end()) outputs_.erase(output);
    if (call != output_calls_.end()) output_calls_.erase(call);
  }
  // Waits for all sends.
  void finish() { drop_sent(0); }

  size_t count() const {
    return inputs_.size() + outputs_.size() + gradients_.size() + input_gradients_.size() + leaving_.size();
  }
  template <class Visit>  // visit(content)
  void for_each(const Visit& visit) const {
    for (const auto* contents : {&inputs_, &outputs_, &gradients_, &input_gradients_}) {
      for (const auto& [key, content] : *contents) visit(content);
    }
    for (const Leaving& leaving : leaving_) visit(leaving.content);
  }

 private:
  Content take(std::map<BorderKey, Content>& from, std::map<BorderKey, PendingCall>& calls, BorderKey key) {
    const auto call = calls.find(key);
    if (call != calls.end()) {
      call->second->wait();
      calls.erase(call);
      drop_sent(leaving_.size());  // sends of the same batched call have completed too
    }
    const auto found = from.find(key);
    MPX_ASSERT(found != from.end(), "microbatch ", key.first, " of chunk ", key.second,
               " runs before its tensor was received");
    Content content = std::move(found->second);
    from.erase(found);
    return content;
  }
  void leave(PendingCall call, Content content, std::optional<BorderKey> output) {
    leaving_.push_back({std::move(call), std::move(content), output});
    drop_sent(kMostLeaving);
  }
  // Handles the gradient of an output. The peer has the output by then, so this wait does not block.
  void arrived(BorderKey output) {
    for (const Leaving& leaving : leaving_) {
      if (leaving.output == output) leaving.call->wait();
    }
    drop_sent(leaving_.size());
  }
  void drop_sent(size_t most_left) {
    const auto drop_done = [this] { std::erase_if(leaving_, [](const auto& sent) { return sent.call->done; }); };
    drop_done();
    while (leaving_.size() > most_left) {
      leaving_.front().call->wait();
      drop_done();
    }
  }

  std::map<BorderKey, Content> inputs_, outputs_, gradients_, input_gradients_;
  std::map<BorderKey, PendingCall> input_calls_, gradient_calls_, output_calls_;
  struct Leaving {
    PendingCall call;
    Content content;
    std::optional<BorderKey> output;  // the pass that produced it; none: the gradient of an input
  };
  std::vector<Leaving> leaving_;  // freed by the schedule, send not completed; oldest first
};

}  // namespace metroplex::plan

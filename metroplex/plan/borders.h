// Tensors that cross stage borders, on one rank, from the action that makes or receives them to the one that uses
// them or knows that they are sent. What is held after each action follows from the table alone, not from who was
// faster. The executor keeps tensors here, the memory replay their bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/action.h"

namespace metroplex::plan {

// (microbatch, chunk)
using BorderKey = std::pair<int, int>;

constexpr bool goes_forward(ActionKind kind) {
  return kind == ActionKind::send_forward || kind == ActionKind::recv_forward;
}

// Content: what crosses one border for one microbatch. Call: one batched p2p call, shared by its actions, with
// `bool done` and `wait()`, which sets it.
template <class Content, class Call>
class Borders {
 public:
  using Flight = std::shared_ptr<Call>;
  // Sets that the schedule is done with but whose sends may not be: at most these are kept, the newest ones. Two
  // are what an overlapped schedule has under way, outputs and gradients.
  static constexpr size_t kMostLeaving = 2;

  // Made by a compute action: to be sent, or, with one stage, the neighbour chunk's own.
  void make_output(BorderKey key, Content content) { outputs_[key] = std::move(content); }
  void make_input_gradient(BorderKey key, Content content) { input_gradients_[key] = std::move(content); }
  void hand_input(BorderKey key, Content content) { inputs_[key] = std::move(content); }
  void hand_gradient(BorderKey key, Content content) { gradients_[key] = std::move(content); }

  // Where a p2p action finds what it sends, or puts what it receives.
  Content& slot(const Action& action) {
    const BorderKey key{action.microbatch, action.chunk};
    if (!is_send(action.kind)) return (goes_forward(action.kind) ? inputs_ : gradients_)[key];
    auto& from = goes_forward(action.kind) ? outputs_ : input_gradients_;
    const auto found = from.find(key);
    MPX_ASSERT(found != from.end(), "nothing to send for microbatch ", key.first, " of chunk ", key.second);
    return found->second;
  }
  // The p2p action has been issued with `flight`.
  void issued(const Action& action, const Flight& flight) {
    const BorderKey key{action.microbatch, action.chunk};
    if (action.kind == ActionKind::send_forward) {
      outputs_in_flight_[key] = flight;
    } else if (action.kind == ActionKind::send_backward) {
      leave(flight, std::move(input_gradients_[key]), {});
      input_gradients_.erase(key);
    } else {
      (action.kind == ActionKind::recv_forward ? inputs_in_flight_ : gradients_in_flight_)[key] = flight;
    }
  }
  // For a compute action, which waits for its call.
  Content take_input(BorderKey key) { return take(inputs_, inputs_in_flight_, key); }
  Content take_gradient(BorderKey key) {
    Content gradient = take(gradients_, gradients_in_flight_, key);
    arrived(key);
    return gradient;
  }
  // The action `free`: the output has been sent, or is not sent at all.
  void release(BorderKey key) {
    const auto output = outputs_.find(key);
    const auto flight = outputs_in_flight_.find(key);
    if (output != outputs_.end() && flight != outputs_in_flight_.end())
      leave(std::move(flight->second), std::move(output->second), key);
    if (output != outputs_.end()) outputs_.erase(output);
    if (flight != outputs_in_flight_.end()) outputs_in_flight_.erase(flight);
  }
  // Waits for all that is leaving.
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
  Content take(std::map<BorderKey, Content>& from, std::map<BorderKey, Flight>& flights, BorderKey key) {
    const auto flight = flights.find(key);
    if (flight != flights.end()) {
      flight->second->wait();
      flights.erase(flight);
      drop_sent(leaving_.size());  // what went with the same call
    }
    const auto found = from.find(key);
    MPX_ASSERT(found != from.end(), "microbatch ", key.first, " of chunk ", key.second,
               " runs before its tensor came");
    Content content = std::move(found->second);
    from.erase(found);
    return content;
  }
  void leave(Flight flight, Content content, std::optional<BorderKey> output) {
    leaving_.push_back({std::move(flight), std::move(content), output});
    drop_sent(kMostLeaving);
  }
  // The output's gradient is here, so the output is there: waiting for its send takes no time.
  void arrived(BorderKey output) {
    for (const Leaving& leaving : leaving_) {
      if (leaving.output == output) leaving.flight->wait();
    }
    drop_sent(leaving_.size());
  }
  void drop_sent(size_t most_left) {
    const auto drop_done = [this] { std::erase_if(leaving_, [](const auto& sent) { return sent.flight->done; }); };
    drop_done();
    while (leaving_.size() > most_left) {
      leaving_.front().flight->wait();
      drop_done();
    }
  }

  std::map<BorderKey, Content> inputs_, outputs_, gradients_, input_gradients_;
  std::map<BorderKey, Flight> inputs_in_flight_, gradients_in_flight_, outputs_in_flight_;
  struct Leaving {
    Flight flight;
    Content content;
    std::optional<BorderKey> output;  // whose forward's; none: an input's gradient
  };
  std::vector<Leaving> leaving_;  // in the order in which they were given up
};

}  // namespace metroplex::plan

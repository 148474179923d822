// Two pieces of work of one rank that advance in turns on one thread: while one waits for an exchange with other
// ranks, the other computes. A pipeline action pairs the forward of one microbatch with the backward of another in
// this way, to hide the all-to-alls of experts (DeepSeek's DualPipe, Megatron-LM's overlap_moe_expert_parallel_comm).
//
// The order of turns depends only on the code of both pieces, so all ranks of a group issue collectives in one order.
// Both run on the same thread: thread-local state such as the current CUDA stream, a capture, or a tape applies to
// both. libtorch's thread-local state (gradient mode, dispatch keys) is switched with the turn.
#pragma once

#include <functional>
#include <memory>

namespace metroplex::device {

class Turns {
 public:
  struct State;
  Turns();
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // Runs both to their ends. `first` begins, on the caller's stack. `second` has a stack of its own and must not
  // start libtorch's autograd engine, which is not reentrant on one thread. If one throws, the other is unwound at
  // its next yield_turn(), and the exception is rethrown.
  void run(const std::function<void()>& first, const std::function<void()>& second);

 private:
  std::unique_ptr<State> state_;
};

// Passes the turn to the other piece of work, and returns when the turn comes back. Without another piece that still
// runs, it returns at once. Call it after an exchange was started and before it is waited for.
void yield_turn();

}  // namespace metroplex::device

// How a recording intercepts libtorch: the calling thread's operator calls and allocations. tape_hooks.cpp holds the
// state that libtorch wants per process and per thread: a dispatcher fallback and the CPU allocator.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <functional>
#include <memory>

#include "cuda/graph/tape_pool.h"

namespace c10 {
class OperatorHandle;
}

namespace metroplex::cuda {

class LibraryCalls {
 public:
  virtual ~LibraryCalls() = default;
  // Instead of an operator below autograd: arguments on the stack, results to be left there by run_below().
  virtual void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) = 0;
};
// Runs the operator itself; what it calls is not seen.
void run_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);
// Runs `work`, whose calls are not seen.
void unseen(const std::function<void()>& work);

// As long as it lives, libtorch's operators of this thread go to `calls` (null: they stay), and CPU tensors of this
// thread get their memory from `pool` (null: from where they get it otherwise). They nest.
class TapeHooks {
 public:
  TapeHooks(LibraryCalls* calls, std::shared_ptr<TapePool> pool);
  ~TapeHooks();
  TapeHooks(const TapeHooks&) = delete;
  TapeHooks& operator=(const TapeHooks&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace metroplex::cuda

// An alternate stack for a thread's signal handlers (sigaltstack). Generated code may use the stack pointer for other
// addresses (the copy-free sgemm kernels of oneDNN before 3.12 for a heap workspace); a handler on such a "stack"
// would overwrite the memory below it.
#pragma once

#include <csignal>
#include <cstddef>

namespace metroplex::cuda {

class SignalStack {
 public:
  // For handlers with SA_ONSTACK, in the calling thread. Throws base::Error("signal stack", ...) where the system has
  // none.
  SignalStack();
  // In the same thread, which gets back what it had.
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

  // Whether it points into the stack of the thread that made this. Any thread may ask, and a signal handler.
  bool on_thread(const void* stack_pointer) const { return stack_pointer >= low_ && stack_pointer < high_; }

 private:
  char* memory_ = nullptr;
  size_t bytes_ = 0;
  stack_t before_{};
  const void *low_ = nullptr, *high_ = nullptr;  // of the thread's stack
};

}  // namespace metroplex::cuda

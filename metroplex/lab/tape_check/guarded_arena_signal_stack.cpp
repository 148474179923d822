#include "tape_check/guarded_arena.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"

namespace metroplex::tape_check {
namespace {

constexpr size_t kHandlers = size_t{256} << 10;

// The size of the saved register state depends on the processor: 12 KB with AMX tiles.
size_t room_for_handlers() {
  const long frame = sysconf(_SC_MINSIGSTKSZ);
  return kHandlers + static_cast<size_t>(std::max(frame, 0L));
}

}  // namespace

SignalStack::SignalStack() {
  pthread_attr_t attributes;
  MPX_CHECK(pthread_getattr_np(pthread_self(), &attributes) == 0, "signal stack",
            "the system does not report this thread's stack");
  void* low = nullptr;
  size_t size = 0;
  pthread_attr_getstack(&attributes, &low, &size);
  pthread_attr_destroy(&attributes);
  low_ = low;
  high_ = static_cast<char*>(low) + size;

  // The lowest page is a guard page.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  bytes_ = (room_for_handlers() + 2 * page - 1) & ~(page - 1);
  void* memory = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  MPX_CHECK(memory != MAP_FAILED, "signal stack", "the system cannot allocate ", bytes_, " bytes");
  memory_ = static_cast<char*>(memory);
  stack_t stack{};
  stack.ss_sp = memory_ + page;
  stack.ss_size = bytes_ - page;
  if (mprotect(stack.ss_sp, stack.ss_size, PROT_READ | PROT_WRITE) != 0 || sigaltstack(&stack, &before_) != 0) {
    munmap(memory_, bytes_);
    base::throw_error("signal stack", "the system does not let handlers run on another stack");
  }
}

SignalStack::~SignalStack() {
  sigaltstack(&before_, nullptr);
  munmap(memory_, bytes_);
}

}  // namespace metroplex::tape_check

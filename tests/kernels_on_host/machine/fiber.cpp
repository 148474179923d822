#include "kernels_on_host/machine/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the callee-saved registers, switches stacks, restores them from the new stack.
extern "C" void metroplex_change_stack(void** from, void* to);
asm(R"(
.text
.globl metroplex_change_stack
.type metroplex_change_stack, @function
metroplex_change_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size metroplex_change_stack, . - metroplex_change_stack
)");

namespace metroplex::kernels_on_host {
namespace {

Fiber* entering = nullptr;  // read by begin() on the new stack, which has no arguments

}  // namespace

Fiber::Fiber()
    : stack_(static_cast<char*>(
          mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  if (stack_ == MAP_FAILED) abort();
}
Fiber::~Fiber() { munmap(stack_, kStackBytes); }

void Fiber::start(void (*entry)(void*), void* argument) {
#ifdef __SANITIZE_ADDRESS__
  // Bytes of abandoned frames: a few frames, or any number after a diagnostic.
  constexpr size_t kFew = 4096;
  const size_t left = abandoned_ ? kStackBytes : kFew;
  __asan_unpoison_memory_region(stack_ + kStackBytes - left, left);
#endif
  abandoned_ = false;
  entry_ = entry;
  argument_ = argument;
  constexpr size_t kSavedRegisters = 6;
  void** top = reinterpret_cast<void**>(stack_ + kStackBytes) - (kSavedRegisters + 2);
  memset(top, 0, (kSavedRegisters + 2) * sizeof(void*));
  top[kSavedRegisters] = reinterpret_cast<void*>(&Fiber::begin);
  inside_ = top;
  fake_inside_ = nullptr;
}

void Fiber::begin() {
  Fiber* const fiber = entering;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &fiber->outside_bottom_, &fiber->outside_bytes_);
#endif
  fiber->entry_(fiber->argument_);
  abort();
}

void Fiber::enter() {
  entering = this;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&fake_outside_, stack_, kStackBytes);
#endif
  metroplex_change_stack(&outside_, inside_);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_outside_, nullptr, nullptr);
#endif
}

void Fiber::leave(bool for_good) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_inside_, outside_bottom_, outside_bytes_);
#else
  (void)for_good;
#endif
  metroplex_change_stack(&inside_, outside_);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_inside_, &outside_bottom_, &outside_bytes_);
#endif
}

}  // namespace metroplex::kernels_on_host

// A separate stack for a function that can be suspended and resumed.
#pragma once

#include <cstddef>

namespace metroplex::kernels_on_host {

class Fiber {
 public:
  static constexpr size_t kStackBytes = size_t{256} << 10;

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Discards the previous function; the next enter() calls entry(argument), which must not return.
  void start(void (*entry)(void*), void* argument);
  // Called outside of the fiber: resumes it until it calls leave().
  void enter();
  // Called inside the fiber. `for_good`: it is not entered again before a start.
  void leave(bool for_good);
  // The fiber stops for good, with any number of calls on its stack.
  void abandon() { abandoned_ = true; }

  bool holds(const void* address) const {
    const char* at = static_cast<const char*>(address);
    return at >= stack_ && at < stack_ + kStackBytes;
  }

 private:
  static void begin();

  char* stack_;
  bool abandoned_ = false;
  void *inside_ = nullptr, *outside_ = nullptr;  // stack pointers
  void* fake_inside_ = nullptr;                  // of AddressSanitizer
  void* fake_outside_ = nullptr;
  const void* outside_bottom_ = nullptr;
  size_t outside_bytes_ = 0;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
};

}  // namespace metroplex::kernels_on_host

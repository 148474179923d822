// A stack of its own for a function that is left in the middle and gone on with later.
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

  // Forgets what ran here and will call entry(argument), which must not return.
  void start(void (*entry)(void*), void* argument);
  // From the outside: goes on inside until leave() is called there.
  void enter();
  // From the inside. `for_good`: it will not be entered again before a start.
  void leave(bool for_good);

  bool holds(const void* address) const {
    const char* at = static_cast<const char*>(address);
    return at >= stack_ && at < stack_ + kStackBytes;
  }

 private:
  static void begin();

  char* stack_;
  void *inside_ = nullptr, *outside_ = nullptr;  // stack pointers
  void* fake_inside_ = nullptr;                  // of AddressSanitizer
  void* fake_outside_ = nullptr;
  const void* outside_bottom_ = nullptr;
  size_t outside_bytes_ = 0;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
};

}  // namespace metroplex::kernels_on_host

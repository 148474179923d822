// While it lives, memory that nobody has written is NaN: padding that leaks into a result is seen.
#pragma once

#include <ATen/Context.h>

namespace metroplex::test {

class Poisoned {
 public:
  Poisoned() { at::globalContext().setDeterministicAlgorithms(true, false); }
  ~Poisoned() { at::globalContext().setDeterministicAlgorithms(false, false); }
  Poisoned(const Poisoned&) = delete;
  Poisoned& operator=(const Poisoned&) = delete;
};

}  // namespace metroplex::test

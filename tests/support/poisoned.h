// During its lifetime uninitialized memory is filled with NaN, so that a test detects padding that leaks into a
// result.
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

// During its lifetime uninitialized memory is filled with NaN, so that a test detects padding that leaks into a
// result.
#pragma once

#include <ATen/Context.h>

namespace metroplex::test {

class NanFillGuard {
 public:
  NanFillGuard() { at::globalContext().setDeterministicAlgorithms(true, false); }
  ~NanFillGuard() { at::globalContext().setDeterministicAlgorithms(false, false); }
  NanFillGuard(const NanFillGuard&) = delete;
  NanFillGuard& operator=(const NanFillGuard&) = delete;
};

}  // namespace metroplex::test

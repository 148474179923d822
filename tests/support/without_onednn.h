// Disables oneDNN in tests that count bytes: oneDNN packs operands into its own memory, and the size depends on the
// CPU.
#pragma once

#include <ATen/Context.h>

namespace metroplex::test {

class WithoutOneDnn {
 public:
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(before_); }
  WithoutOneDnn(const WithoutOneDnn&) = delete;
  WithoutOneDnn& operator=(const WithoutOneDnn&) = delete;

 private:
  bool before_ = at::globalContext().userEnabledMkldnn();
};

}  // namespace metroplex::test

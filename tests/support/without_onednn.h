// oneDNN packs what it multiplies into memory of its own, as much as the machine's instructions want: tests that
// count bytes do without it.
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

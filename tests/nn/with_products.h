// Selects another matmul library than this CPU's default, to cover the choices of other CPUs.
#pragma once

#include "nn/product_choice.h"

namespace metroplex::test {

class WithProducts {
 public:
  explicit WithProducts(const nn::ProductChoice& choice) { nn::product_choice() = choice; }
  ~WithProducts() { nn::product_choice() = before_; }
  WithProducts(const WithProducts&) = delete;
  WithProducts& operator=(const WithProducts&) = delete;

 private:
  nn::ProductChoice before_ = nn::product_choice();
};

}  // namespace metroplex::test

// Sums over whole tensors that do not depend on the number of threads: fixed blocks, added in order, in double.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace metroplex::optim {

// Sum of squares of a contiguous float or double CPU tensor. A NaN or Inf element makes the result NaN or Inf.
double sum_of_squares(const at::Tensor& tensor);

// Number of elements that are exactly zero, of a contiguous float or double CPU tensor.
int64_t count_zeros(const at::Tensor& tensor);

}  // namespace metroplex::optim

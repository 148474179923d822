// Helpers for tests of GPU kernels: values of every element type, and the comparison with the CPU reference.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/half.h"

namespace metroplex::kernels {

template <class T>
constexpr at::ScalarType kType = std::is_same_v<T, double> ? at::kDouble
                                 : std::is_same_v<T, Bf16> ? at::kBFloat16
                                 : std::is_same_v<T, F16>  ? at::kHalf
                                                           : at::kFloat;

template <class T>
at::Tensor values(std::vector<int64_t> sizes, double step) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return at::arange(1, numel + 1, at::kDouble).mul(step).sin().mul(3).to(kType<T>).view(sizes);
}

template <class T>
at::Tensor wide_values(int64_t n, double step) {
  return values<Wide<T>>({n}, step);
}

template <class T>
T* data(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.mutable_data_ptr()) : nullptr;
}

// Both round to T once. The CPU's fast erf is off by 1.5e-7, other fp32 arithmetic by the few roundings of `slack`
// units. A value near the midpoint of two half numbers may round either way: to neighbors, which are 2^-7 (bf16) or
// 2^-10 (f16) relative apart just above a power of two. For sums, `sizes` is the sum of the absolute values. The n
// terms of either sign are added in another order. Each implementation is then off by n roundings of partial sums of
// sqrt(n) terms' size. These errors have random signs: together one rounding of all sizes.
template <class T>
void expect_twins(const at::Tensor& gpu, const at::Tensor& cpu, const char* what, double sizes = 0) {
  constexpr double kUnit = std::is_same_v<T, double> ? 0 : std::is_same_v<T, Bf16> ? 0x1p-7 : 0x1p-10;
  const double of_sums = 2 * sizes * (std::is_same_v<Wide<T>, double> ? 0x1p-53 : 0x1p-24);
  const double rounding = kIsHalf<T> ? kUnit : 0, slack = std::is_same_v<Wide<T>, double> ? 1e-12 : 4e-6;
  const at::Tensor wanted = cpu.to(at::kDouble), got = gpu.to(at::kCPU, at::kDouble);
  const double largest = std::max(1e-3, wanted.abs().max().item<double>());
  const at::Tensor error = (got - wanted).abs() - wanted.abs() * rounding;
  EXPECT_LE(error.max().item<double>(), slack * largest + of_sums + (std::is_same_v<T, F16> ? 0x1p-24 : 0)) << what;
}

inline at::Tensor on_gpu(const at::Tensor& x) { return x.defined() ? x.to(at::kCUDA) : x; }

}  // namespace metroplex::kernels

// Elementary functions for CPU kernels, written so that compilers vectorize them. The float exp is accurate to about
// 3 ulp, tanh and erf to about 2e-7 absolutely. Other types use the standard library.
#pragma once

#include <cmath>
#include <cstdint>

// Attributes that compile a function for several instruction sets and select one at program start. They do not work
// on templates: the compiler clones plain functions only.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(__CUDACC__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(METROPLEX_KERNELS_ON_HOST)
#define MPX_CLONES(...) __attribute__((target_clones(__VA_ARGS__)))
#else
#define MPX_CLONES(...)
#endif

#define MPX_VECTOR_CLONES MPX_CLONES("default", "avx2", "avx512f")
// For 8-bit and 16-bit types, which need AVX-512 BW, DQ and VL in addition to avx512f.
#define MPX_HALF_CLONES MPX_CLONES("default", "avx2", "arch=x86-64-v4")

#define MPX_INLINE inline __attribute__((always_inline))

namespace metroplex::kernels {

// Computes exp as 2^n e^r with |r| <= ln(2)/2 and a polynomial of degree 6. Clamps the argument to [-87, 88].
MPX_INLINE float vector_exp(float x) {
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  const float shifted = x * 1.44269504088896341F + kMagic;
  const float n = shifted - kMagic;
  const float r = (x - n * 0.693145751953125F) - n * 1.428606765330187045e-6F;
  float p = 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const int32_t exponent = __builtin_bit_cast(int32_t, shifted) - __builtin_bit_cast(int32_t, kMagic);
  return p * __builtin_bit_cast(float, (exponent + 127) << 23);
}
MPX_INLINE double vector_exp(double x) { return std::exp(x); }

MPX_INLINE float vector_tanh(float x) {
  const float e = vector_exp(2.0F * __builtin_fabsf(x));
  return __builtin_copysignf(1.0F - 2.0F / (e + 1.0F), x);
}
MPX_INLINE double vector_tanh(double x) { return std::tanh(x); }

// Abramowitz and Stegun 7.1.26: absolute error below 1.5e-7.
MPX_INLINE float vector_erf(float x) {
  const float a = __builtin_fabsf(x);
  const float t = 1.0F / (1.0F + 0.3275911F * a);
  const float p =
      ((((1.061405429F * t - 1.453152027F) * t + 1.421413741F) * t - 0.284496736F) * t + 0.254829592F) * t;
  return __builtin_copysignf(1.0F - p * vector_exp(-a * a), x);
}
MPX_INLINE double vector_erf(double x) { return std::erf(x); }

// Returns term(0) + ... + term(n - 1), summed in 16 lanes so that the loop vectorizes and the order of addition is
// fixed.
template <class T, class Term>
MPX_INLINE T lane_sum(int64_t n, const Term& term) {
  constexpr int64_t kLanes = 16;
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] += term(i + l);
  }
  T total = 0;
  for (; i < n; ++i) total += term(i);
  for (int64_t l = 0; l < kLanes; ++l) total += lanes[l];
  return total;
}

}  // namespace metroplex::kernels

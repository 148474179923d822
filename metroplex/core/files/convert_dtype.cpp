#include "files/convert_dtype.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace metroplex::files {
namespace {

template <class T>
void put(std::byte* out, uint64_t i, T value) {
  std::memcpy(out + i * sizeof(T), &value, sizeof(T));
}

struct Half {
  int exponent, fraction;
};

uint16_t half_bits(double x, const Half& form) {
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const int infinite = ((1 << form.exponent) - 1) << form.fraction;
  if (std::isnan(x)) return static_cast<uint16_t>(sign | infinite | 1 << (form.fraction - 1));
  if (std::isinf(x)) return static_cast<uint16_t>(sign | infinite);
  const int bias = (1 << (form.exponent - 1)) - 1;
  if (x == 0) return sign;
  int above = 0;  // |x| < 2^above
  std::frexp(x, &above);
  const int exponent = std::max(above - 1, 1 - bias);  // 1 - bias also applies to subnormals
  if (exponent > bias) return static_cast<uint16_t>(sign | infinite);
  // `units` includes the leading one, which increments the exponent below; a carry does the same.
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(std::abs(x), form.fraction - exponent)));
  return static_cast<uint16_t>(sign | (((exponent + bias - 1) << form.fraction) + units));
}

constexpr Half kBrain{8, 7}, kIeee{5, 10};

void float_to_brain(const std::byte* in, std::byte* out, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, in + i * 4, 4);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    put(out, i, static_cast<uint16_t>((nan ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16));
  }
}

}  // namespace

bool is_float(Dtype dtype) {
  return dtype == Dtype::kF64 || dtype == Dtype::kF32 || dtype == Dtype::kBF16 || dtype == Dtype::kF16;
}

void convert_elements(Dtype from, const std::byte* in, Dtype to, std::byte* out, uint64_t count) {
  if (from == to) {
    if (count > 0) std::memcpy(out, in, count * static_cast<uint64_t>(dtype_bits(from)) / 8);
    return;
  }
  MPX_CHECK(is_float(from) && is_float(to), "files", "values of dtype ", dtype_name(from), " cannot be written as ",
            dtype_name(to), "; only F64, F32, BF16 and F16 can be converted");
  if (from == Dtype::kF32 && to == Dtype::kBF16) return float_to_brain(in, out, count);
  for (uint64_t i = 0; i < count; ++i) {
    const double x = element_as_double(from, in, i);
    if (to == Dtype::kF64) put(out, i, x);
    if (to == Dtype::kF32) put(out, i, static_cast<float>(x));
    if (to == Dtype::kBF16) put(out, i, half_bits(x, kBrain));
    if (to == Dtype::kF16) put(out, i, half_bits(x, kIeee));
  }
}

}  // namespace metroplex::files

#include "files/convert_dtype.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "files/small_float.h"

namespace metroplex::files {
namespace {

template <class T>
void put(std::byte* out, uint64_t i, T value) {
  std::memcpy(out + i * sizeof(T), &value, sizeof(T));
}

uint16_t half_bits(double x, const FloatForm& form) {
  const int sign = std::signbit(x) ? 0x8000 : 0;
  const int infinite = ((1 << form.exponent) - 1) << form.fraction;
  const int magnitude = std::isnan(x)   ? infinite | 1 << (form.fraction - 1)
                        : std::isinf(x) ? infinite
                                        : std::min(nearest_code(std::abs(x), form), infinite);
  return static_cast<uint16_t>(sign | magnitude);
}

constexpr FloatForm kBrain{8, 7, 127}, kIeee{5, 10, 15};

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

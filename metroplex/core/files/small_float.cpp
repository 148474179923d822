#include "files/small_float.h"

#include <algorithm>
#include <cmath>

namespace metroplex::files {
namespace {

constexpr FloatForm kE4m3{4, 3, 7}, kE2m1{2, 1, 1};

// Returns the value of a code that is not special. Exponent 0 has the subnormals.
double finite_value(int code, const FloatForm& form) {
  const int fraction = code & ((1 << form.fraction) - 1);
  const int exponent = code >> form.fraction & ((1 << form.exponent) - 1);
  const int units = exponent == 0 ? fraction : fraction + (1 << form.fraction);
  const double value = std::ldexp(units, (exponent == 0 ? 1 : exponent) - form.bias - form.fraction);
  return (code >> (form.exponent + form.fraction) & 1) != 0 ? -value : value;
}

// `last`: the code of the largest value.
int saturated_code(double value, const FloatForm& form, int last) {
  const int sign = std::signbit(value) ? 1 << (form.exponent + form.fraction) : 0;
  return sign | nearest_code(std::min(std::abs(value), finite_value(last, form)), form);
}

}  // namespace

int nearest_code(double magnitude, const FloatForm& form) {
  if (magnitude == 0) return 0;
  int above = 0;  // magnitude < 2^above
  std::frexp(magnitude, &above);
  const int exponent = std::max(above - 1, 1 - form.bias);  // 1 - bias also applies to subnormals
  // `units` includes the leading one, which increments the exponent; a carry does the same.
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, form.fraction - exponent)));
  return ((exponent + form.bias - 1) << form.fraction) + units;
}

double e4m3_value(uint8_t code) { return (code & 0x7f) == 0x7f ? std::nan("") : finite_value(code, kE4m3); }

uint8_t e4m3_code(double value) {
  if (std::isnan(value)) return std::signbit(value) ? 0xff : 0x7f;
  return static_cast<uint8_t>(saturated_code(value, kE4m3, 0x7e));
}

double e8m0_value(uint8_t code) { return code == 255 ? std::nan("") : std::ldexp(1.0, code - 127); }

double e2m1_value(int code) { return finite_value(code, kE2m1); }

int e2m1_code(double value) { return saturated_code(value, kE2m1, 7); }

}  // namespace metroplex::files

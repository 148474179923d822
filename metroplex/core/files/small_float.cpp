#include "files/small_float.h"

#include <cmath>

namespace metroplex::files {
namespace {

// A code without special values. Exponent 0 has the subnormals.
struct SmallForm {
  int exponent, fraction, bias;
};

double finite_value(int code, const SmallForm& form) {
  const int fraction = code & ((1 << form.fraction) - 1);
  const int exponent = code >> form.fraction & ((1 << form.exponent) - 1);
  const int units = exponent == 0 ? fraction : fraction + (1 << form.fraction);
  const double value = std::ldexp(units, (exponent == 0 ? 1 : exponent) - form.bias - form.fraction);
  return (code >> (form.exponent + form.fraction) & 1) != 0 ? -value : value;
}

}  // namespace

double e4m3_value(uint8_t code) { return (code & 0x7f) == 0x7f ? std::nan("") : finite_value(code, {4, 3, 7}); }

double e8m0_value(uint8_t code) { return code == 255 ? std::nan("") : std::ldexp(1.0, code - 127); }

double e2m1_value(int code) { return finite_value(code, {2, 1, 1}); }

}  // namespace metroplex::files

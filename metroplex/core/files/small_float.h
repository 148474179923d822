// Values of floating-point codes with at most 8 bits, as the OCP formats define them ("8-bit Floating Point
// Specification" and "Microscaling Formats Specification", both version 1.0). All values are exact in float32.
#pragma once

#include <cstdint>

namespace metroplex::files {

// A format with a sign and subnormals: numbers of bits, and the bias of the exponent.
struct FloatForm {
  int exponent, fraction, bias;
};
// Returns the code of the value nearest to a finite `magnitude` >= 0, ties to even, as if the exponent were
// unbounded.
int nearest_code(double magnitude, const FloatForm& form);

// Sign, 4 exponent bits with bias 7, 3 fraction bits. There are no infinities; codes 0x7f and 0xff are NaN.
double e4m3_value(uint8_t code);
// Returns the nearest code, ties to even. Magnitudes above 448 become 448; NaN stays NaN.
uint8_t e4m3_code(double value);
constexpr double kMaxE4m3 = 448;
// A power of two, the scale of a block: 2^(code - 127). Code 255 is NaN.
double e8m0_value(uint8_t code);
// `code`: 0 to 15. Sign, 2 exponent bits with bias 1, 1 fraction bit; the largest value is 6.
double e2m1_value(int code);
// Returns the nearest code, ties to even. Magnitudes above 6 become 6. `value` must not be NaN.
int e2m1_code(double value);

}  // namespace metroplex::files

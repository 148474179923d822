// Values of floating-point codes with at most 8 bits, as the OCP formats define them ("8-bit Floating Point
// Specification" and "Microscaling Formats Specification", both version 1.0). All values are exact in float32.
#pragma once

#include <cstdint>

namespace metroplex::files {

// Sign, 4 exponent bits with bias 7, 3 fraction bits. There are no infinities; codes 0x7f and 0xff are NaN.
double e4m3_value(uint8_t code);
// A power of two, the scale of a block: 2^(code - 127). Code 255 is NaN.
double e8m0_value(uint8_t code);
// `code`: 0 to 15. Sign, 2 exponent bits with bias 1, 1 fraction bit; the largest value is 6.
double e2m1_value(int code);

}  // namespace metroplex::files

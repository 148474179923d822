#include "kernels/dropout_rows.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {

// One block per 64-bit lane, whose product contains both halves; x86-64-v4 multiplies such lanes in one instruction.
// The rounds are an unrolled inner loop, because otherwise the loop over blocks does not vectorize.
MPX_HALF_CLONES void philox_blocks(uint64_t key, uint64_t first, uint64_t high, uint32_t* bits) {
  uint32_t words[4][kPhiloxBlocks];
  for (int64_t b = 0; b < kPhiloxBlocks; ++b) {
    const uint64_t low = first + static_cast<uint64_t>(b);
    uint64_t c0 = static_cast<uint32_t>(low), c1 = low >> 32, c2 = static_cast<uint32_t>(high), c3 = high >> 32;
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53} * static_cast<uint32_t>(c0),
                     p1 = uint64_t{0xCD9E8D57} * static_cast<uint32_t>(c2);
      c0 = (p1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(p1);
      c2 = (p0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(p0);
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    words[0][b] = static_cast<uint32_t>(c0);
    words[1][b] = static_cast<uint32_t>(c1);
    words[2][b] = static_cast<uint32_t>(c2);
    words[3][b] = static_cast<uint32_t>(c3);
  }
  for (int64_t b = 0; b < kPhiloxBlocks; ++b) {
    for (int64_t lane = 0; lane < 4; ++lane) bits[4 * b + lane] = words[lane][b];
  }
}

}  // namespace metroplex::kernels

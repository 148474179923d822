// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11).
// A value is a pure function of key and counter, so it is equal on every device and in every layout.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace metroplex::base {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  PhiloxBlock block{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                    static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * block[0], p1 = uint64_t{0xCD9E8D57} * block[2];
    block = {static_cast<uint32_t>(p1 >> 32) ^ block[1] ^ k0, static_cast<uint32_t>(p1),
             static_cast<uint32_t>(p0 >> 32) ^ block[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return block;
}

// Returns two independent standard normals from one block (Box-Muller, in double so that float and double runs
// agree).
inline std::array<double, 2> normal_pair(const PhiloxBlock& block) {
  const double u = (static_cast<double>(block[0]) + 1.0) * 0x1p-32;  // (0, 1]
  const double v = static_cast<double>(block[1]) * 0x1p-32;
  const double radius = std::sqrt(-2.0 * std::log(u)), angle = 6.283185307179586476925286766559 * v;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// FNV-1a hash; converts names to keys.
inline uint64_t hash_name(const char* text) {
  uint64_t hash = 14695981039346656037ull;
  for (; *text != '\0'; ++text) hash = (hash ^ static_cast<unsigned char>(*text)) * 1099511628211ull;
  return hash;
}

}  // namespace metroplex::base

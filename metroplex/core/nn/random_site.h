// Each location in the model that uses random numbers has its own key, derived from seed, layer and site. A random
// value is a function of key and position (base/philox.h), so it does not depend on parallel layout, recompute or
// resuming.
#pragma once

#include <cstdint>

namespace metroplex::nn {

// Append only: the enumerator's value determines the random numbers.
enum class RandomSite : uint64_t {
  embedding,
  attention_probabilities,
  attention_output,
  mlp_output,
  router_input,
  router_logits,
  adapter_input,
  gradient_rounding
};

// The finalizer of splitmix64, a bijection: spreads small numbers over 64 bits.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Unique for every layer below 2^47 and site below 2^16. Words of the first four sites are consecutive and below
// 2^63; those of the other sites are above.
constexpr uint64_t site_word(int64_t layer, RandomSite site) {
  constexpr uint64_t kNumberedThrough = 4;
  const auto number = static_cast<uint64_t>(site), of_layer = static_cast<uint64_t>(layer);
  return number < kNumberedThrough ? of_layer * kNumberedThrough + number : 1ull << 63 | of_layer << 16 | number;
}

// For a given seed, different for every site of every layer, because `mix` is a bijection.
constexpr uint64_t random_key(uint64_t seed, int64_t layer, RandomSite site) {
  return mix(mix(seed) ^ site_word(layer, site));
}

}  // namespace metroplex::nn

// The random numbers of Megatron's data order, bit for bit: numpy's legacy RandomState (MT19937, Fisher-Yates shuffle
// with masked rejection), numpy's default_rng (PCG64 seeded by SeedSequence, bounded integers by Lemire's method) and
// torch.randperm on the CPU.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

namespace metroplex::data {

// numpy.random.RandomState(seed). Seeds have 32 bits, as in numpy.
class RandomState {
 public:
  explicit RandomState(uint32_t seed) : engine_(seed) {}

  uint32_t next_u32() { return static_cast<uint32_t>(engine_()); }

  // Uniform in [0, max]: masks samples with the smallest 2^k - 1 >= max until one is in range.
  uint64_t interval(uint64_t max) {
    if (max == 0) return 0;
    uint64_t mask = max;
    for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
    uint64_t value;
    if (max <= 0xffffffffu) {
      do value = next_u32() & mask;
      while (value > max);
    } else {
      do {
        const uint64_t high = next_u32();
        value = ((high << 32) | next_u32()) & mask;
      } while (value > max);
    }
    return value;
  }

  // RandomState.shuffle of a one-dimensional array. Random numbers are sampled ahead of the swaps, so that elements
  // of a long array can be prefetched.
  template <class T>
  void shuffle(T* values, int64_t count) {
    std::array<uint64_t, 32> places;
    for (int64_t i = count - 1; i > 0;) {
      const int64_t drawn = std::min<int64_t>(i, std::ssize(places));
      for (int64_t k = 0; k < drawn; ++k) {
        places[static_cast<size_t>(k)] = interval(static_cast<uint64_t>(i - k));
        __builtin_prefetch(values + places[static_cast<size_t>(k)], 1);
      }
      for (int64_t k = 0; k < drawn; ++k, --i) std::swap(values[i], values[places[static_cast<size_t>(k)]]);
    }
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    shuffle(values.data(), static_cast<int64_t>(values.size()));
  }

 private:
  std::mt19937 engine_;
};

// numpy.random.default_rng(seed).
class DefaultRng {
 public:
  explicit DefaultRng(uint64_t seed);

  uint64_t next_u64();
  uint32_t next_u32();  // low half of a 64-bit number first, then its high half

  // integers(low, high, size, dtype=int32): uniform in [low, high). Throws base::Error unless low < high.
  std::vector<int32_t> integers(int32_t low, int32_t high, int64_t count);

 private:
  using Word128 = unsigned __int128;

  Word128 state_ = 0, increment_ = 0;
  bool has_half_ = false;
  uint32_t half_ = 0;
};

// torch.randperm(n, generator=torch.Generator().manual_seed(seed)).
std::vector<int64_t> torch_randperm(int64_t n, uint64_t seed);

}  // namespace metroplex::data

#include "data/numpy_random.h"

#include <array>
#include <numeric>

#include "base/error.h"

namespace metroplex::data {

namespace {

// numpy's SeedSequence (after O'Neill's seed_seq_fe). Entropy words are hashed into a pool of four, and every pool
// word is mixed into every other. The output words are hashed from the pool in turn.
class SeedSequence {
 public:
  explicit SeedSequence(uint64_t seed) {
    std::vector<uint32_t> entropy{static_cast<uint32_t>(seed)};
    if (seed >> 32 != 0) entropy.push_back(static_cast<uint32_t>(seed >> 32));
    uint32_t constant = 0x43b0d7e5;
    const auto hash = [&constant](uint32_t value) {
      value ^= constant;
      constant *= 0x931e8875;
      value *= constant;
      return value ^ (value >> 16);
    };
    for (size_t i = 0; i < pool_.size(); ++i) pool_[i] = hash(i < entropy.size() ? entropy[i] : 0);
    for (size_t from = 0; from < pool_.size(); ++from) {
      for (size_t to = 0; to < pool_.size(); ++to) {
        if (from == to) continue;
        const uint32_t mixed = 0xca01f9ddu * pool_[to] - 0x4973f715u * hash(pool_[from]);
        pool_[to] = mixed ^ (mixed >> 16);
      }
    }
  }

  std::array<uint64_t, 4> words() const {
    std::array<uint64_t, 4> out{};
    uint32_t constant = 0x8b51f9dd;
    for (size_t i = 0; i < 8; ++i) {
      uint32_t value = pool_[i % pool_.size()] ^ constant;
      constant *= 0x58f38ded;
      value *= constant;
      value ^= value >> 16;
      out[i / 2] |= static_cast<uint64_t>(value) << (32 * (i % 2));
    }
    return out;
  }

 private:
  std::array<uint32_t, 4> pool_{};
};

constexpr unsigned __int128 kMultiplier =
    (static_cast<unsigned __int128>(0x2360ed051fc65da4) << 64) | 0x4385df649fccf645;

}  // namespace

DefaultRng::DefaultRng(uint64_t seed) {
  const auto words = SeedSequence(seed).words();
  const Word128 start = (static_cast<Word128>(words[0]) << 64) | words[1];
  const Word128 stream = (static_cast<Word128>(words[2]) << 64) | words[3];
  increment_ = (stream << 1) | 1;
  state_ = (increment_ + start) * kMultiplier + increment_;  // PCG's seeding: step, add the start, step
}

uint64_t DefaultRng::next_u64() {
  state_ = state_ * kMultiplier + increment_;
  const uint64_t folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);  // XSL-RR output
  const unsigned turn = static_cast<unsigned>(state_ >> 122);
  return (folded >> turn) | (folded << ((64 - turn) & 63));
}

uint32_t DefaultRng::next_u32() {
  if (has_half_) {
    has_half_ = false;
    return half_;
  }
  const uint64_t both = next_u64();
  has_half_ = true;
  half_ = static_cast<uint32_t>(both >> 32);
  return static_cast<uint32_t>(both);
}

std::vector<int32_t> DefaultRng::integers(int32_t low, int32_t high, int64_t count) {
  MPX_CHECK(low < high, "data", "random integers require low < high, but low = ", low, ", high = ", high);
  std::vector<int32_t> out(static_cast<size_t>(count));
  const uint64_t range = static_cast<uint64_t>(static_cast<int64_t>(high) - low);
  const uint32_t threshold = static_cast<uint32_t>((uint64_t{1} << 32) % range);
  for (int32_t& value : out) {
    uint64_t product = 0;
    if (range > 1) {
      do product = static_cast<uint64_t>(next_u32()) * range;
      while (static_cast<uint32_t>(product) < threshold);
    }
    value = static_cast<int32_t>(low + static_cast<int64_t>(product >> 32));
  }
  return out;
}

std::vector<int64_t> torch_randperm(int64_t n, uint64_t seed) {
  MPX_CHECK(n >= 0, "data", "cannot permute ", n, " samples: the number must not be negative");
  std::mt19937 engine(static_cast<uint32_t>(seed));
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const bool wide =
      n >= static_cast<int64_t>(0xffffffffu / 20);  // for larger n a 32-bit modulo would be visibly biased
  for (int64_t i = 0; i + 1 < n; ++i) {
    uint64_t draw = engine();
    if (wide) draw = (draw << 32) | engine();
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(i) + draw % static_cast<uint64_t>(n - i)]);
  }
  return order;
}

}  // namespace metroplex::data

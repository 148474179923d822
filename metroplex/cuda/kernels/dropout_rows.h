// The rows of bias_dropout_add on the CPU, for kernels that do more with a row while it is in the cache.
#pragma once

#include "cuda/kernels/dropout.h"
#include "cuda/kernels/dropout_block.h"
#include "cuda/kernels/vector_math.h"

#pragma GCC push_options
#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::cuda::kernels {

constexpr int64_t kPhiloxBlocks = 16;  // made together

// bits[4 b + lane] of blocks first .. first + kPhiloxBlocks - 1: base::philox4x32 with a block a lane of 64 bits,
// whose product holds both halves. The rounds are inside and unrolled: only so does the loop over blocks become
// vector code.
MPX_INLINE void philox_blocks(uint64_t key, uint64_t first, uint64_t high, uint32_t* __restrict bits) {
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

constexpr int64_t kDrawn = 4 * kPhiloxBlocks;

// factor[i] = 0 or 1 / (1 - p) of elements first .. first + kDrawn - 1 of the row; first + row.start starts a block.
template <class T>
MPX_INLINE void draw(const DropoutShape& s, const DropoutRow& row, int64_t first, T* __restrict factor) {
  uint32_t bits[kDrawn];
  const auto threshold = static_cast<uint32_t>(s.probability * 16777216.0);  // of the top 24 bits
  const T scale = static_cast<T>(1.0 / (1.0 - s.probability));
  philox_blocks(s.key, static_cast<uint64_t>((row.start + first) / 4), row.counter, bits);
  for (int64_t i = 0; i < kDrawn; ++i) factor[i] = (bits[i] >> 8) < threshold ? T(0) : scale;
}

// out[i] = value(i) [+ residual[i]] for i in [begin, end); out may be what value reads.
template <class Out, class Value>
MPX_INLINE void add_residual(const Out* residual, Out* out, int64_t begin, int64_t end, const Value& value) {
  if (residual != nullptr) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) out[i] = store<Out>(value(i) + load(residual[i]));
  } else {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) out[i] = store<Out>(value(i));
  }
}

template <class In, class Out>
MPX_INLINE void drop_row(const DropoutOperands<In, Out>& o, const DropoutShape& s, int64_t row) {
  const In* x = o.x + row * s.width;
  const Wide<In>* bias = o.bias;
  const Out* residual = o.residual == nullptr ? nullptr : o.residual + row * s.width;
  Out* out = o.out + row * s.width;
  if (s.probability > 0) {
    const DropoutRow place = dropout_row(s, row);
    Wide<In> factor[kDrawn];
    for (int64_t first = -(place.start % 4); first < s.width; first += kDrawn) {
      draw(s, place, first, factor);
      const int64_t begin = first < 0 ? 0 : first, end = first + kDrawn < s.width ? first + kDrawn : s.width;
      if (bias != nullptr) {
        add_residual(residual, out, begin, end,
                     [&](int64_t i) { return (load(x[i]) + bias[i]) * factor[i - first]; });
      } else {
        add_residual(residual, out, begin, end, [&](int64_t i) { return load(x[i]) * factor[i - first]; });
      }
    }
  } else if (bias != nullptr) {
    add_residual(residual, out, 0, s.width, [&](int64_t i) { return load(x[i]) + bias[i]; });
  } else {
    add_residual(residual, out, 0, s.width, [&](int64_t i) { return load(x[i]); });
  }
}

}  // namespace metroplex::cuda::kernels

#pragma GCC pop_options

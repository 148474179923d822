#include <ATen/Parallel.h>

#include <vector>

#include "base/philox.h"
#include "cuda/kernels/dropout.h"
#include "cuda/kernels/vector_math.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::cuda::kernels {
namespace {

constexpr int64_t kBlocks = 16;  // Philox blocks made together

// bits[4 b + lane] of blocks first .. first + kBlocks - 1, the rounds of base::philox4x32 in vector form.
MPX_INLINE void philox_blocks(uint64_t key, uint64_t first, uint64_t high, uint32_t* __restrict bits) {
  uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
  for (int64_t b = 0; b < kBlocks; ++b) {
    const uint64_t low = first + static_cast<uint64_t>(b);
    c0[b] = static_cast<uint32_t>(low);
    c1[b] = static_cast<uint32_t>(low >> 32);
    c2[b] = static_cast<uint32_t>(high);
    c3[b] = static_cast<uint32_t>(high >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int64_t b = 0; b < kBlocks; ++b) {
      const uint64_t p0 = uint64_t{0xD2511F53} * c0[b], p1 = uint64_t{0xCD9E8D57} * c2[b];
      c0[b] = static_cast<uint32_t>(p1 >> 32) ^ c1[b] ^ k0;
      c1[b] = static_cast<uint32_t>(p1);
      c2[b] = static_cast<uint32_t>(p0 >> 32) ^ c3[b] ^ k1;
      c3[b] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  for (int64_t b = 0; b < kBlocks; ++b) {
    bits[4 * b] = c0[b];
    bits[4 * b + 1] = c1[b];
    bits[4 * b + 2] = c2[b];
    bits[4 * b + 3] = c3[b];
  }
}

template <class In, class Out>
struct Operands {
  const In* x;
  const Wide<In>* bias;
  const Out* residual;
  Out* out;
};

// factor[e] = 0 or 1 / (1 - p).
template <class T>
MPX_INLINE void draw_row(const DropoutShape& s, const DropoutRow& row, T* __restrict factor) {
  uint32_t bits[4 * kBlocks];
  const auto threshold = static_cast<uint32_t>(s.probability * 16777216.0);  // of the top 24 bits
  const T scale = static_cast<T>(1.0 / (1.0 - s.probability));
  const int64_t skip = row.start % 4;
  for (int64_t e = -skip; e < s.width; e += 4 * kBlocks) {
    philox_blocks(s.key, static_cast<uint64_t>((row.start + e) / 4), row.counter, bits);
    const int64_t begin = e < 0 ? -e : 0, end = s.width - e < 4 * kBlocks ? s.width - e : 4 * kBlocks;
    for (int64_t i = begin; i < end; ++i) factor[e + i] = (bits[i] >> 8) < threshold ? T(0) : scale;
  }
}

template <class In, class Out>
MPX_INLINE void rows_loop(const Operands<In, Out>& o, const DropoutShape& s, Wide<In>* __restrict factor,
                          int64_t begin, int64_t end) {
  using T = Wide<In>;
  for (int64_t r = begin; r < end; ++r) {
    const In* x = o.x + r * s.width;
    const Out* residual = o.residual + r * s.width;
    Out* out = o.out + r * s.width;
    if (s.probability > 0) draw_row(s, s.rows[r], factor);
    if (o.bias != nullptr && o.residual != nullptr && s.probability == 0) {
      for (int64_t i = 0; i < s.width; ++i) out[i] = store<Out>(load(x[i]) + o.bias[i] + load(residual[i]));
      continue;
    }
    for (int64_t i = 0; i < s.width; ++i) {
      T value = o.bias != nullptr ? load(x[i]) + o.bias[i] : load(x[i]);
      if (s.probability > 0) value *= factor[i];
      out[i] = store<Out>(o.residual != nullptr ? value + load(residual[i]) : value);
    }
  }
}

#define MPX_ROWS(clones, In, Out)                                                                              \
  clones void run_rows(const Operands<In, Out>& o, const DropoutShape& s, Wide<In>* f, int64_t b, int64_t e) { \
    rows_loop(o, s, f, b, e);                                                                                  \
  }
MPX_ROWS(MPX_VECTOR_CLONES, float, float)
MPX_ROWS(MPX_VECTOR_CLONES, double, double)
MPX_ROWS(MPX_HALF_CLONES, Bf16, Bf16)
MPX_ROWS(MPX_HALF_CLONES, F16, F16)
MPX_ROWS(MPX_HALF_CLONES, Bf16, float)
MPX_ROWS(MPX_HALF_CLONES, F16, float)
MPX_ROWS(MPX_HALF_CLONES, float, Bf16)
MPX_ROWS(MPX_HALF_CLONES, float, F16)
#undef MPX_ROWS

}  // namespace

template <class In, class Out>
void bias_dropout_add(const In* x, const Wide<In>* bias, const Out* residual, Out* out, const DropoutShape& shape) {
  const Operands<In, Out> o{x, bias, residual, out};
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.width));
  at::parallel_for(0, shape.num_rows, grain, [&](int64_t begin, int64_t end) {
    std::vector<Wide<In>> factor(shape.probability > 0 ? static_cast<size_t>(shape.width) : 0);
    run_rows(o, shape, factor.data(), begin, end);
  });
}

#define MPX_INSTANTIATE(In, Out) \
  template void bias_dropout_add<In, Out>(const In*, const Wide<In>*, const Out*, Out*, const DropoutShape&)
MPX_FOR_ELEMENT_CASTS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels

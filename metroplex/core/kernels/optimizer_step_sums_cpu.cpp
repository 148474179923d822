#include <ATen/Parallel.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "kernels/optimizer_step.h"
#include "kernels/optimizer_tile.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math,fp-contract=off")

namespace metroplex::kernels {
namespace {

constexpr int64_t kLanes = 16;

template <class T>
MPX_INLINE double square(T x) {
  return static_cast<double>(x) * static_cast<double>(x);
}

// Element i is added to lane i % kLanes. In the last tile of a block, elements that do not fill all lanes are added
// to lane 0. A full tile uses explicit vectors, because the compiler keeps the lanes in registers only in some
// contexts.
template <class T>
MPX_INLINE void add_tile(const T* __restrict x, int64_t n, double* __restrict lanes) {
  typedef double Lanes __attribute__((vector_size(kLanes * sizeof(double))));
  typedef T Elements __attribute__((vector_size(kLanes * sizeof(T))));
  if (n == kTile) {
    Lanes sum;
    std::memcpy(&sum, lanes, sizeof(sum));
    for (int64_t i = 0; i < kTile; i += kLanes) {
      Elements narrow;
      std::memcpy(&narrow, x + i, sizeof(narrow));
      const Lanes wide = __builtin_convertvector(narrow, Lanes);
      sum += wide * wide;
    }
    std::memcpy(lanes, &sum, sizeof(sum));
    return;
  }
  const int64_t even = n / kLanes * kLanes;
  for (int64_t i = 0; i < even; ++i) lanes[i % kLanes] += square(x[i]);
  for (int64_t i = even; i < n; ++i) lanes[0] += square(x[i]);
}

template <class T>
MPX_INLINE int32_t count_zeros(const T* __restrict x, int64_t n) {
  int32_t zeros = 0;
  for (int64_t i = 0; i < n; ++i) zeros += x[i] == 0;
  return zeros;
}

MPX_INLINE const float* widened(const void* grad, Number number, int64_t at, int64_t n, float* buffer) {
  const uint16_t* half = static_cast<const uint16_t*>(grad) + at;
  number == Number::bf16 ? bf16_to_floats(half, n, buffer) : f16_to_floats(half, n, buffer);
  return buffer;
}

template <class Work>
MPX_INLINE void each_tile(int64_t begin, int64_t end, const Work& work) {
  for (int64_t at = begin; at < end; at += kTile) work(at, std::min(kTile, end - at));
}

// Calls work(elements, count) tile by tile, with a separate loop for each type. A shared loop would spill the sums
// from registers.
template <class Work>
MPX_INLINE void for_tiles(const void* grad, Number number, int64_t begin, int64_t end, const Work& work) {
  if (number == Number::f64) {
    each_tile(
        begin, end, [&](int64_t at, int64_t n) __attribute__((always_inline)) {
          work(static_cast<const double*>(grad) + at, n);
        });
  } else if (number == Number::f32) {
    each_tile(
        begin, end, [&](int64_t at, int64_t n) __attribute__((always_inline)) {
          work(static_cast<const float*>(grad) + at, n);
        });
  } else {
    float buffer[kTile];
    each_tile(
        begin, end, [&](int64_t at, int64_t n) __attribute__((always_inline)) {
          work(widened(grad, number, at, n, buffer), n);
        });
  }
}

MPX_HALF_CLONES void sum_block(const void* grad, Number number, int64_t begin, int64_t end, GradientSums& out) {
  double lanes[kLanes] = {};
  for_tiles(
      grad, number, begin, end, [&](const auto* x, int64_t n) __attribute__((always_inline)) {
        add_tile(x, n, lanes);
        out.num_zeros += count_zeros(x, n);
      });
  for (const double lane : lanes) out.sum_of_squares += lane;
}

// Runs only if the sum is not finite.
int64_t count_nonfinite(const void* grad, Number number, int64_t begin, int64_t end) {
  int64_t count = 0;
  for_tiles(grad, number, begin, end, [&](const auto* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) count += std::isfinite(x[i]) ? 0 : 1;
  });
  return count;
}

GradientSums block_sums(const void* grad, Number number, int64_t begin, int64_t end) {
  GradientSums sums;
  sum_block(grad, number, begin, end, sums);
  if (!std::isfinite(sums.sum_of_squares)) sums.num_nonfinite = count_nonfinite(grad, number, begin, end);
  return sums;
}

// Writes elements [begin, end) of a sum of shards, tile by tile.
MPX_HALF_CLONES void add_shards(const ReceivedShards& received, const ShardSum& sum, int64_t begin, int64_t end) {
  float total[kTile], shard[kTile];
  const auto round = [&](uint16_t * out, int64_t n) __attribute__((always_inline)) {
    received.number == Number::bf16 ? floats_to_bf16(total, n, out) : floats_to_f16(total, n, out);
  };
  const auto add = [&](int64_t n) __attribute__((always_inline)) {
    for (int64_t i = 0; i < n; ++i) total[i] += shard[i];
  };
  each_tile(
      begin, end, [&](int64_t at, int64_t n) __attribute__((always_inline)) {
        uint16_t* const out = static_cast<uint16_t*>(sum.out) + at;
        widened(received.data, received.number, sum.begin + at, n, total);
        for (int rank = 1; rank < received.ranks; ++rank) {
          widened(received.data, received.number, rank * received.size + sum.begin + at, n, shard);
          add(n);
        }
        if (received.adds) {
          uint16_t rounded[kTile];
          round(rounded, n);
          widened(rounded, received.number, 0, n, total);
          widened(out, received.number, 0, n, shard);
          add(n);
        }
        round(out, n);
      });
}

void add(GradientSums& to, const GradientSums& from) {
  to.sum_of_squares += from.sum_of_squares;
  to.num_nonfinite += from.num_nonfinite;
  to.num_zeros += from.num_zeros;
}

GradientSums total_sums(const GradientSums* partial, int64_t n) {
  GradientSums total;
  for (int64_t block = 0; block < gradient_sums_blocks(n); ++block) add(total, partial[block]);
  return total;
}

}  // namespace

GradientSums gradient_sums(const void* grad, Number number, int64_t n) {
  MPX_ASSERT(number != Number::block8, "gradients are not stored as block8");
  std::vector<GradientSums> partial(static_cast<size_t>(gradient_sums_blocks(n)));
  at::parallel_for(0, static_cast<int64_t>(partial.size()), 8, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kSumsBlock;
      partial[static_cast<size_t>(block)] = block_sums(grad, number, first, std::min(first + kSumsBlock, n));
    }
  });
  return total_sums(partial.data(), n);
}

void sum_shards(const std::vector<ShardSum>& all, const ReceivedShards& received) {
  for (const ShardSum& sum : all) {
    at::parallel_for(0, gradient_sums_blocks(sum.n), 4, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kSumsBlock, last = std::min(first + kSumsBlock, sum.n);
        add_shards(received, sum, first, last);
        if (sum.sums != nullptr) sum.sums[block] = block_sums(sum.out, received.number, first, last);
      }
    });
  }
}

void add_gradient_sums(const std::vector<GradientRange>& ranges, const GradientSumsPlace& place) {
  for (const GradientRange& range : ranges) {
    const GradientSums sums = range.summed ? total_sums(static_cast<const GradientSums*>(range.grad), range.n)
                                           : gradient_sums(range.grad, range.number, range.n);
    add(*place.sums, range.counts ? sums : GradientSums{0, sums.num_nonfinite, 0});
  }
}

}  // namespace metroplex::kernels

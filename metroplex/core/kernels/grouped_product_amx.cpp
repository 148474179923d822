// Products of half types by x86 tile units (AMX) or, in the same order of sums, by bf16 pair products (AVX512_BF16).
// Both operands are packed into tiles of 16 rows of 64 bytes; four tiles of sums are computed at a time. AMX
// instructions are encoded as bytes, because some supported assemblers and compilers lack them.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/grouped_choice.h"
#include "kernels/grouped_pack.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are only passed between inlined functions

namespace metroplex::kernels {

namespace {
constexpr int64_t kDepth = 512, kBlockM = 512, kBlockN = 512;
}

GroupedCut amx_cut() { return {kBlockM, kBlockN, (kBlockM + 32) * kDepth * 2 + kBlockM * kBlockN * 4}; }

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)

namespace {

#define MPX_TILES __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))

constexpr int64_t kTile = 512;  // 16-bit elements of a tile: 16 rows of 32

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

#define MPX_LOAD(tile, address, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(address), "r"(static_cast<int64_t>(stride)) : "memory")
#define MPX_STORE(tile, address, stride) \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(address), "r"(static_cast<int64_t>(stride)) : "memory")
#define MPX_ZERO(tile) asm volatile("tilezero %%tmm" #tile ::)
// tmm<sum> += tmm<left> tmm<right>: tdpbf16ps, tdpfp16ps.
#define MPX_BYTES(byte2, modrm) asm volatile(".byte 0xc4, 0xe2, " #byte2 ", 0x5c, " #modrm ::)

// Computes float sums [32, 32] = or += the products of two rows of `left` tiles and two columns of `right` tiles.
using FourTiles = void (*)(const uint16_t* left, const uint16_t* right, int64_t tiles, float* sums, int64_t ld,
                           bool adds, Ahead& ahead);

template <class T>
MPX_INLINE void four_amx_tiles(const uint16_t* left, const uint16_t* right, int64_t tiles, float* sums, int64_t ld,
                               bool adds, Ahead& ahead) {
  const int64_t bytes = ld * 4;
  float* const below = sums + 16 * ld;
  const uint16_t *left1 = left + tiles * kTile, *right1 = right + tiles * kTile;
  if (adds) {
    MPX_LOAD(0, sums, bytes);
    MPX_LOAD(1, sums + 16, bytes);
    MPX_LOAD(2, below, bytes);
    MPX_LOAD(3, below + 16, bytes);
  } else {
    MPX_ZERO(0);
    MPX_ZERO(1);
    MPX_ZERO(2);
    MPX_ZERO(3);
  }
  for (int64_t i = 0; i < tiles; ++i) {
    ahead.step();
    MPX_LOAD(4, left + i * kTile, 64);
    MPX_LOAD(6, right + i * kTile, 64);
    MPX_LOAD(5, left1 + i * kTile, 64);
    MPX_LOAD(7, right1 + i * kTile, 64);
    if constexpr (std::is_same_v<T, Bf16>) {
      MPX_BYTES(0x4a, 0xc4);  // 0 += 4 6
      MPX_BYTES(0x4a, 0xd5);  // 2 += 5 6
      MPX_BYTES(0x42, 0xcc);  // 1 += 4 7
      MPX_BYTES(0x42, 0xdd);  // 3 += 5 7
    } else {
      MPX_BYTES(0x4b, 0xc4);
      MPX_BYTES(0x4b, 0xd5);
      MPX_BYTES(0x43, 0xcc);
      MPX_BYTES(0x43, 0xdd);
    }
  }
  MPX_STORE(0, sums, bytes);
  MPX_STORE(1, sums + 16, bytes);
  MPX_STORE(2, below, bytes);
  MPX_STORE(3, below + 16, bytes);
}

#define MPX_DOTS __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))

// Computes kRows rows of sums [kRows, 32].
template <int kRows>
MPX_DOTS MPX_INLINE void rows_by_dots(const uint16_t* left, const uint16_t* right, int64_t tiles, float* sums,
                                      int64_t ld, bool adds, Ahead& ahead) {
  const auto* const right1 = right + tiles * kTile;
  __m512 low[kRows], high[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    low[r] = adds ? _mm512_loadu_ps(sums + r * ld) : _mm512_setzero_ps();
    high[r] = adds ? _mm512_loadu_ps(sums + r * ld + 16) : _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < tiles * 16; ++i) {  // pairs of k
    if (i % 16 == 0) ahead.step();
    const __m512i b0 = _mm512_loadu_si512(right + i * 32), b1 = _mm512_loadu_si512(right1 + i * 32);
    const uint16_t* const pairs = left + i / 16 * kTile + i % 16 * 2;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, pairs + r * 32, sizeof(pair));
      const __m512i a = _mm512_set1_epi32(pair);
      low[r] = _mm512_dpbf16_ps(low[r], (__m512bh)a, (__m512bh)b0);
      high[r] = _mm512_dpbf16_ps(high[r], (__m512bh)a, (__m512bh)b1);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(sums + r * ld, low[r]);
    _mm512_storeu_ps(sums + r * ld + 16, high[r]);
  }
}

MPX_DOTS void four_tiles_by_dots(const uint16_t* left, const uint16_t* right, int64_t tiles, float* sums, int64_t ld,
                                 bool adds, Ahead& ahead) {
  constexpr int kRows = 8;  // 16 sums in registers
  for (int64_t row = 0; row < 32; row += kRows) {
    const uint16_t* const from = left + (row / 16 * tiles) * kTile + row % 16 * 32;
    rows_by_dots<kRows>(from, right, tiles, sums + row * ld, ld, adds, ahead);
  }
}

using Pairs = VectorOf<uint32_t, 16>::Type;
using Halves = VectorOf<uint16_t, 16>::Type;

// Interleaves 16 columns of two rows.
MPX_INLINE Pairs two_rows(const uint16_t* source, int64_t ld) {
  const Halves low = *reinterpret_cast<const Halves*>(source), high = *reinterpret_cast<const Halves*>(source + ld);
  return __builtin_convertvector(low, Pairs) | __builtin_convertvector(high, Pairs) << 16;
}

// out [32][32] = source [rows][columns], padded with zeros.
__attribute__((noinline)) void pad(const uint16_t* source, int64_t ld, int64_t rows, int64_t columns, uint16_t* out) {
  std::fill_n(out, 32 * 32, uint16_t{0});
  for (int64_t i = 0; i < rows; ++i) std::copy_n(source + i * ld, columns, out + i * 32);
}

// Packs one tile from [rows, columns] at `source`; missing elements are 0. A line of a left tile has one row of m and
// 32 values of k. A line of a right tile has 16 columns of n, with two adjacent values of k each.
enum class Reads { rows_of_32, rows_of_32_transposed, pairs_of_rows, pairs_of_rows_transposed };

template <Reads reads>
MPX_INLINE void pack_tile(const uint16_t* source, int64_t ld, int64_t rows, int64_t columns, uint16_t* tile) {
  constexpr bool single = reads == Reads::rows_of_32 || reads == Reads::rows_of_32_transposed;
  constexpr int64_t kRows = single ? 16 : 32, kColumns = single ? 32 : 16;
  uint16_t padded[32 * 32];
  if (rows < kRows || columns < kColumns) {
    pad(source, ld, std::clamp<int64_t>(rows, 0, kRows), std::clamp<int64_t>(columns, 0, kColumns), padded);
    source = padded, ld = 32;
  }
  Pairs lines[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    lines[i] = single ? *reinterpret_cast<const Pairs*>(source + i * ld) : two_rows(source + 2 * i * ld, ld);
  }
  if constexpr (reads == Reads::rows_of_32_transposed || reads == Reads::pairs_of_rows_transposed) {
    transpose<Pairs, 16>(lines);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) reinterpret_cast<Pairs*>(tile)[i] = lines[i];
}

// Packs all tiles of an operand: for each 16 rows of its own dimension, the tiles along k. The source has `own` x
// `depth` elements and is [k, own] if `by_k`, else [own, k].
template <Reads along, Reads across>
MPX_TILES __attribute__((noinline)) void pack_tiles(const uint16_t* source, int64_t ld, bool by_k, int64_t own,
                                                    int64_t depth, uint16_t* out) {
  const int64_t tiles = (depth + 31) / 32, all = round_up(own, 32);
  if (by_k) {  // in memory order
    for (int64_t k = 0; k < depth; k += 32) {
      for (int64_t i = 0; i < all; i += 16) {
        pack_tile<across>(source + k * ld + i, ld, depth - k, own - i, out + (i / 16 * tiles + k / 32) * kTile);
      }
    }
    return;
  }
  for (int64_t i = 0; i < all; i += 16) {
    for (int64_t k = 0; k < depth; k += 32, out += kTile) {
      pack_tile<along>(source + i * ld + k, ld, own - i, depth - k, out);
    }
  }
}

template <class T>
MPX_INLINE void store_block(const GroupedProblem& problem, const GroupedBlock& block, const float* sums, int64_t ld) {
  const float factor = problem.factor;
  for (int64_t i = 0; i < block.m(); ++i) {
    const int64_t at = (block.m_begin + i) * problem.ldc + block.n_begin, n = block.n();
    const float* const from = sums + i * ld;
    if (problem.wide_c) {
      float* const to = static_cast<float*>(problem.c) + at;
      for (int64_t j = 0; j < n; ++j) to[j] = problem.adds ? to[j] + from[j] * factor : from[j] * factor;
    } else {
      T* const to = static_cast<T*>(problem.c) + at;
      if (problem.adds) {
        for (int64_t j = 0; j < n; ++j) to[j] = store<T>(load(to[j]) + from[j] * factor);
      } else {
        for (int64_t j = 0; j < n; ++j) to[j] = store<T>(from[j] * factor);
      }
    }
  }
}

template <class T, FourTiles four_tiles>
MPX_INLINE void tiled_block(const GroupedWork& work, const GroupedWork* after, char* scratch) {
  const GroupedProblem& problem = work.problem;
  const GroupedBlock& block = work.block;
  const auto* a = static_cast<const uint16_t*>(problem.a);
  const auto* b = static_cast<const uint16_t*>(problem.b);
  auto* left = reinterpret_cast<uint16_t*>(scratch);
  uint16_t* const right = left + kBlockM * kDepth;
  auto* const sums = reinterpret_cast<float*>(right + 32 * kDepth);
  const auto at = [&](int64_t k, int64_t column) {  // prefetching past the operand's end is safe
    return problem.b_by_n ? b + (block.n_begin + column) * problem.ldb + k
                          : b + k * problem.ldb + block.n_begin + column;
  };
  const int64_t width = round_up(block.n(), 32);
  for (int64_t from = 0; from < problem.k; from += kDepth) {
    const int64_t depth = std::min(kDepth, problem.k - from), tiles = (depth + 31) / 32;
    pack_tiles<Reads::rows_of_32, Reads::pairs_of_rows_transposed>(
        problem.a_by_k ? a + from * problem.lda + block.m_begin : a + block.m_begin * problem.lda + from, problem.lda,
        problem.a_by_k, block.m(), depth, left);
    for (int64_t j = 0; j < width; j += 32) {
      const int64_t columns = std::min<int64_t>(32, block.n() - j), steps = (block.m() + 31) / 32 * tiles;
      pack_tiles<Reads::rows_of_32_transposed, Reads::pairs_of_rows>(at(from, j), problem.ldb, !problem.b_by_n,
                                                                     columns, depth, right);
      const uint16_t* const next = j + 32 < width              ? at(from, j + 32)
                                   : from + kDepth < problem.k ? at(from + kDepth, 0)
                                                               : first_of_right<uint16_t>(after);
      const int64_t rows = next == nullptr ? 0 : problem.b_by_n ? 32 : depth;
      Ahead ahead(next, rows, problem.b_by_n ? depth * 2 : 64, problem.ldb * 2, steps);
      for (int64_t i = 0; i < block.m(); i += 32) {
        four_tiles(left + i / 16 * tiles * kTile, right, tiles, sums + i * width + j, width, from > 0, ahead);
      }
    }
  }
  store_block<T>(problem, block, sums, width);
}

}  // namespace

MPX_TILES void bf16_amx(const GroupedWork& work, const GroupedWork* next, char* scratch) {
  tiled_block<Bf16, four_amx_tiles<Bf16>>(work, next, scratch);
}
MPX_TILES void f16_amx(const GroupedWork& work, const GroupedWork* next, char* scratch) {
  tiled_block<F16, four_amx_tiles<F16>>(work, next, scratch);
}
MPX_DOTS void bf16_dots(const GroupedWork& work, const GroupedWork* next, char* scratch) {
  tiled_block<Bf16, four_tiles_by_dots>(work, next, scratch);
}
void amx_begin() {
  const TileConfig config;
  asm volatile("ldtilecfg %0" ::"m"(config));
}
void amx_end() { asm volatile("tilerelease" ::); }

#else

void bf16_amx(const GroupedWork&, const GroupedWork*, char*) {}
void f16_amx(const GroupedWork&, const GroupedWork*, char*) {}
void bf16_dots(const GroupedWork&, const GroupedWork*, char*) {}
void amx_begin() {}
void amx_end() {}

#endif

}  // namespace metroplex::kernels

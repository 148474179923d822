// Products by the vector units, for AVX-512, AVX2 and what every x86-64 has: panels of the right operand stay in the
// first-level cache, the left operand is read where it lies. Half types are widened block by block.
#include "cuda/kernels/grouped_choice.h"
#include "cuda/kernels/grouped_pack.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math,fp-contract=fast")

namespace metroplex::cuda::kernels {
namespace {

constexpr int64_t kDepth = 128;  // of k at a time
constexpr int64_t kBlockM = 252, kBlockN = 256;

// How many rows and vectors of columns of the result are in registers at a time, of how many bytes.
struct Avx512 {
  static constexpr int kRows = 6, kVectors = 4, kBytes = 64;
};
struct Avx2 {
  static constexpr int kRows = 6, kVectors = 2, kBytes = 32;
};
struct Plain {
  static constexpr int kRows = 6, kVectors = 2, kBytes = 16;
};

template <class A>
struct Left {
  const A* data;
  int64_t row, column;  // strides
};

template <class A>
struct Result {
  A* data;
  int64_t ld;
  bool adds;
};

// result [kRows, n] = or += left [kRows, k] times panel [k][kVectors * kLanes].
template <class A, int kLanes, int kRows, int kVectors>
MPX_INLINE void inner(int64_t k, const Left<A>& left, const A* __restrict panel, const Result<A>& result, int64_t n) {
  using V = typename VectorOf<A, kLanes>::Type;
  constexpr int kWidth = kVectors * kLanes;
  V sums[kRows][kVectors];
  const A* rows[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    rows[i] = left.data + i * left.row;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[i][v] = V{};
  }
  const int64_t step = left.column;
  for (int64_t p = 0; p < k; ++p) {
    V right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = *reinterpret_cast<const V*>(panel + p * kWidth + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const A value = *rows[i];
      rows[i] += step;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[i][v] += right[v] * value;
    }
  }
  if (n == kWidth) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        V* const to = reinterpret_cast<V*>(result.data + i * result.ld + v * kLanes);
        *to = result.adds ? *to + sums[i][v] : sums[i][v];
      }
    }
    return;
  }
  A edge[kRows][kWidth];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) *reinterpret_cast<V*>(&edge[i][v * kLanes]) = sums[i][v];
  }
  for (int i = 0; i < kRows; ++i) {
    A* const to = result.data + i * result.ld;
    for (int64_t j = 0; j < n; ++j) to[j] = result.adds ? to[j] + edge[i][j] : edge[i][j];
  }
}

template <class A, class Set, int kRows>
MPX_INLINE void inner_rows(int64_t k, const Left<A>& left, const A* panel, const Result<A>& result, int64_t n) {
  constexpr int kLanes = Set::kBytes / static_cast<int>(sizeof(A));
  const int64_t vectors = (n + kLanes - 1) / kLanes;
  if (vectors == 1) return inner<A, kLanes, kRows, 1>(k, left, panel, result, n);
  if constexpr (Set::kVectors == 4) {
    if (vectors == 3) return inner<A, kLanes, kRows, 3>(k, left, panel, result, n);
    if (vectors == 4) return inner<A, kLanes, kRows, 4>(k, left, panel, result, n);
  }
  inner<A, kLanes, kRows, 2>(k, left, panel, result, n);
}

template <class A, class Set>
MPX_INLINE void inner_any(int64_t rows, int64_t k, const Left<A>& left, const A* panel, const Result<A>& result,
                          int64_t n) {
  switch (rows) {
    case 1:
      return inner_rows<A, Set, 1>(k, left, panel, result, n);
    case 2:
      return inner_rows<A, Set, 2>(k, left, panel, result, n);
    case 3:
      return inner_rows<A, Set, 3>(k, left, panel, result, n);
    case 4:
      return inner_rows<A, Set, 4>(k, left, panel, result, n);
    case 5:
      return inner_rows<A, Set, 5>(k, left, panel, result, n);
    default:
      return inner_rows<A, Set, 6>(k, left, panel, result, n);
  }
}

// One panel of the right operand: k from `from` on, columns n_begin .. n_begin + n.
template <class A>
struct Right {
  const A* data;  // of the block's first column
  int64_t ld;
  bool by_n;
};

template <class A, class Set>
MPX_INLINE void panels(const Left<A>& left, const Right<A>& right, const Result<A>& result, int64_t m, int64_t n,
                       int64_t k, A* panel) {
  constexpr int64_t kLanes = Set::kBytes / sizeof(A), kWidth = kLanes * Set::kVectors;
  for (int64_t from = 0; from < k; from += kDepth) {
    const int64_t depth = std::min(kDepth, k - from);
    for (int64_t column = 0; column < n; column += kWidth) {
      const int64_t columns = std::min(kWidth, n - column), width = round_up(columns, kLanes);
      if (right.by_n) {
        pack_transposed<A, kLanes>(right.data + column * right.ld + from, right.ld, columns, depth, panel, width);
      } else {
        pack_rows<A>(right.data + from * right.ld + column, right.ld, columns, depth, panel, width);
      }
      for (int64_t row = 0; row < m; row += Set::kRows) {
        inner_any<A, Set>(std::min<int64_t>(Set::kRows, m - row), depth,
                          {left.data + row * left.row + from * left.column, left.row, left.column}, panel,
                          {result.data + row * result.ld + column, result.ld, result.adds || from > 0}, columns);
      }
    }
  }
}

template <class A, class Set>
MPX_INLINE void wide_block(const GroupedProblem& p, const GroupedBlock& block, char* scratch) {
  const auto* a = static_cast<const A*>(p.a);
  const auto* b = static_cast<const A*>(p.b);
  const Left<A> left = p.a_by_k ? Left<A>{a + block.m_begin, 1, p.lda} : Left<A>{a + block.m_begin * p.lda, p.lda, 1};
  const Right<A> right{p.b_by_n ? b + block.n_begin * p.ldb : b + block.n_begin, p.ldb, p.b_by_n};
  panels<A, Set>(left, right, {static_cast<A*>(p.c) + block.m_begin * p.ldc + block.n_begin, p.ldc, p.adds},
                 block.m(), block.n(), p.k, reinterpret_cast<A*>(scratch));
}

// rows x columns elements of a half type into a packed block of floats.
template <class T>
MPX_INLINE void widen(const T* source, int64_t ld, int64_t rows, int64_t columns, float* out) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) out[i * columns + j] = load(source[i * ld + j]);
  }
}

template <class T>
MPX_INLINE void store_block(const GroupedProblem& p, const GroupedBlock& block, const float* sums) {
  const int64_t n = block.n();
  for (int64_t i = 0; i < block.m(); ++i) {
    const int64_t at = (block.m_begin + i) * p.ldc + block.n_begin;
    const float* const from = sums + i * n;
    if (p.wide_c) {
      float* const to = static_cast<float*>(p.c) + at;
      for (int64_t j = 0; j < n; ++j) to[j] = p.adds ? to[j] + from[j] : from[j];
    } else {
      T* const to = static_cast<T*>(p.c) + at;
      for (int64_t j = 0; j < n; ++j) to[j] = store<T>(p.adds ? load(to[j]) + from[j] : from[j]);
    }
  }
}

template <class T, class Set>
MPX_INLINE void half_block(const GroupedProblem& p, const GroupedBlock& block, char* scratch) {
  const auto* a = static_cast<const T*>(p.a);
  const auto* b = static_cast<const T*>(p.b);
  auto* panel = reinterpret_cast<float*>(scratch);
  float *wide_a = panel + kDepth * 64, *wide_b = wide_a + kBlockM * kDepth, *sums = wide_b + kBlockN * kDepth;
  const int64_t m = block.m(), n = block.n();
  for (int64_t i = 0; p.k == 0 && i < m * n; ++i) sums[i] = 0;
  for (int64_t from = 0; from < p.k; from += kDepth) {
    const int64_t depth = std::min(kDepth, p.k - from);
    if (p.a_by_k) widen(a + from * p.lda + block.m_begin, p.lda, depth, m, wide_a);
    else widen(a + block.m_begin * p.lda + from, p.lda, m, depth, wide_a);
    if (p.b_by_n) widen(b + block.n_begin * p.ldb + from, p.ldb, n, depth, wide_b);
    else widen(b + from * p.ldb + block.n_begin, p.ldb, depth, n, wide_b);
    panels<float, Set>({wide_a, p.a_by_k ? 1 : depth, p.a_by_k ? m : 1}, {wide_b, p.b_by_n ? depth : n, p.b_by_n},
                       {sums, n, from > 0}, m, n, depth, panel);
  }
  store_block<T>(p, block, sums);
}

}  // namespace

GroupedCut wide_cut() { return {kBlockM, kBlockN, kDepth * 64 * 8}; }
GroupedCut half_cut() {
  return {kBlockM, kBlockN, (kDepth * 64 + (kBlockM + kBlockN) * kDepth + kBlockM * kBlockN) * 4};
}

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#define MPX_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define MPX_AVX2 __attribute__((target("avx2,fma,f16c")))
#else
#define MPX_AVX512
#define MPX_AVX2
#endif

#define MPX_WIDE(name, target, A, Set)                                                  \
  target void name(const GroupedProblem& p, const GroupedBlock& block, char* scratch) { \
    wide_block<A, Set>(p, block, scratch);                                              \
  }
#define MPX_HALF(name, target, T, Set)                                                  \
  target void name(const GroupedProblem& p, const GroupedBlock& block, char* scratch) { \
    half_block<T, Set>(p, block, scratch);                                              \
  }
MPX_WIDE(float_avx512, MPX_AVX512, float, Avx512)
MPX_WIDE(float_avx2, MPX_AVX2, float, Avx2)
MPX_WIDE(float_plain, , float, Plain)
MPX_WIDE(double_avx512, MPX_AVX512, double, Avx512)
MPX_WIDE(double_avx2, MPX_AVX2, double, Avx2)
MPX_WIDE(double_plain, , double, Plain)
MPX_HALF(bf16_avx512, MPX_AVX512, Bf16, Avx512)
MPX_HALF(bf16_avx2, MPX_AVX2, Bf16, Avx2)
MPX_HALF(bf16_plain, , Bf16, Plain)
MPX_HALF(f16_avx512, MPX_AVX512, F16, Avx512)
MPX_HALF(f16_avx2, MPX_AVX2, F16, Avx2)
MPX_HALF(f16_plain, , F16, Plain)
#undef MPX_WIDE
#undef MPX_HALF

}  // namespace metroplex::cuda::kernels

// Products by vector units, for AVX-512, AVX2 and the x86-64 baseline. Panels of the right operand stay in the L1
// cache, a copied block of the left operand in the L2 cache. Half types are widened when they are copied.
#include "kernels/grouped_choice.h"
#include "kernels/grouped_pack.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math,fp-contract=fast")

namespace metroplex::kernels {
namespace {

constexpr int64_t kDepth = 192;  // values of k per block
constexpr int64_t kBlockM = 266, kBlockN = 256;
constexpr int64_t kStep = 32;              // values of k between two prefetch steps
constexpr int64_t kLeftRow = kDepth + 16;  // rows a power of two apart would map to few cache lines

// Number of result rows and column vectors in registers, and bytes per vector.
struct Avx512 {
  static constexpr int kRows = 14, kVectors = 2, kBytes = 64;
};
struct Avx2 {
  static constexpr int kRows = 6, kVectors = 2, kBytes = 32;
};
struct Plain {
  static constexpr int kRows = 6, kVectors = 2, kBytes = 16;
};

// result [m, n] = or += factor left times right, summed over `depth` values of k. left: [m][kLeftRow], or
// [depth][kBlockM] if left_by_k. right: [depth][ld], or [n][ld] if right_by_n.
template <class A>
struct Panels {
  const A* left;
  bool left_by_k;
  const A* right;
  int64_t ld;
  bool right_by_n;
  A* result;
  int64_t ld_result;
  bool adds;
  int64_t m, n, depth;
  A factor;
  A* panel;       // scratch: kDepth * kBlockN
  const A* next;  // right operand of the next call; null if there is none or it is already in cache
};

// to [rows, n] = or += edge [rows][width]. Not inlined, so that all sizes of the inner loop share one copy.
template <class A>
__attribute__((noinline)) void store_edge(const A* edge, int64_t width, A* to, int64_t ld, int rows, int64_t n,
                                          bool adds) {
  for (int i = 0; i < rows; ++i, edge += width, to += ld) {
    for (int64_t j = 0; j < n; ++j) to[j] = adds ? to[j] + edge[j] : edge[j];
  }
}

// result [kRows, n] = or += factor left [kRows, k] times panel [k][kVectors * kLanes].
template <class A, int kLanes, int kRows, int kVectors, bool kByK>
MPX_INLINE void inner(const Panels<A>& of, const A* left, A* result, int64_t n, Ahead& ahead) {
  using V = typename VectorOf<A, kLanes>::Type;
  constexpr int kWidth = kVectors * kLanes;
  constexpr int64_t kRow = kByK ? 1 : kLeftRow, kColumn = kByK ? kBlockM : 1;
  const A* __restrict panel = of.panel;
  const int64_t k = of.depth, ld = of.ld_result;
  const bool adds = of.adds;
  V sums[kRows][kVectors];
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = V{};
      if (v * kLanes < n) __builtin_prefetch(result + i * ld + v * kLanes, 1);
    }
  }
  for (int64_t begin = 0; begin < k; begin += kStep) {
    ahead.step();
    for (int64_t p = begin; p < std::min(k, begin + kStep); ++p) {
      V right[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) right[v] = *reinterpret_cast<const V*>(panel + v * kLanes);
#pragma GCC unroll 14
      for (int i = 0; i < kRows; ++i) {
        const A value = left[i * kRow];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sums[i][v] += right[v] * value;
      }
      panel += kWidth;
      left += kColumn;
    }
  }
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[i][v] *= of.factor;
  }
  if (n == kWidth) {
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        V* const to = reinterpret_cast<V*>(result + i * ld + v * kLanes);
        *to = adds ? *to + sums[i][v] : sums[i][v];
      }
    }
    return;
  }
  A edge[kRows][kWidth];
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) *reinterpret_cast<V*>(&edge[i][v * kLanes]) = sums[i][v];
  }
  store_edge(&edge[0][0], kWidth, result, ld, kRows, n, adds);
}

template <class A, class Set, int kRows, bool kByK>
MPX_INLINE void inner_columns(const Panels<A>& panels, const A* left, A* result, int64_t n, Ahead& ahead) {
  constexpr int kLanes = Set::kBytes / static_cast<int>(sizeof(A));
  if (n > kLanes) inner<A, kLanes, kRows, 2, kByK>(panels, left, result, n, ahead);
  else inner<A, kLanes, kRows, 1, kByK>(panels, left, result, n, ahead);
}

template <class A, class Set, bool kByK>
MPX_INLINE void panel_rows(const Panels<A>& panels, int64_t column, int64_t columns, Ahead& ahead) {
  constexpr int64_t kRow = kByK ? 1 : kLeftRow;
  int64_t row = 0;
#define MPX_ROWS(n)                                                                                  \
  for (; row + n <= panels.m; row += n) {                                                            \
    inner_columns<A, Set, n, kByK>(panels, panels.left + row * kRow,                                 \
                                   panels.result + row * panels.ld_result + column, columns, ahead); \
  }
  MPX_ROWS(Set::kRows)
  // Remaining rows use few sizes except where speed matters, because each size compiles another loop.
  if constexpr (sizeof(A) == sizeof(float) && Set::kBytes > 16) {
    if constexpr (Set::kRows > 8) MPX_ROWS(8)
    MPX_ROWS(4)
    MPX_ROWS(2)
  }
  MPX_ROWS(1)
#undef MPX_ROWS
}

// Number of prefetch steps while `columns` are multiplied.
template <class A, class Set>
MPX_INLINE int64_t count_steps(const Panels<A>& panels, int64_t columns) {
  constexpr int64_t kWidth = Set::kBytes / sizeof(A) * Set::kVectors;
  return (columns + kWidth - 1) / kWidth * ((panels.m + Set::kRows - 1) / Set::kRows) *
         ((panels.depth + kStep - 1) / kStep);
}

template <class A, class Set>
MPX_INLINE void multiply(Panels<A> panels, A* panel, int64_t column, int64_t columns, Ahead& ahead) {
  panels.panel = panel;
  if (panels.left_by_k) panel_rows<A, Set, true>(panels, column, columns, ahead);
  else panel_rows<A, Set, false>(panels, column, columns, ahead);
}

// If the right operand is stored by columns, each panel is packed just before its use; otherwise all panels are
// packed at once. The next panel, or the next set, is prefetched. Prefetches may pass the operand's end, but no
// element there is read.
template <class A, class Set>
MPX_INLINE void panels(const Panels<A>& panels) {
  constexpr int64_t kLanes = Set::kBytes / sizeof(A), kWidth = kLanes * Set::kVectors, kSize = sizeof(A);
  if (panels.right_by_n) {
    for (int64_t column = 0; column < panels.n; column += kWidth) {
      const int64_t columns = std::min(kWidth, panels.n - column);
      pack_transposed<A, kLanes>(panels.right + column * panels.ld, panels.ld, columns, panels.depth, panels.panel,
                                 round_up(columns, kLanes));
      const A* const next = column + kWidth < panels.n ? panels.right + (column + kWidth) * panels.ld : panels.next;
      Ahead ahead(next, next == nullptr ? 0 : kWidth, panels.depth * kSize, panels.ld * kSize,
                  count_steps<A, Set>(panels, columns));
      multiply<A, Set>(panels, panels.panel, column, columns, ahead);
    }
    return;
  }
  pack_rows<A, kWidth, kLanes>(panels.right, panels.ld, panels.n, panels.depth, panels.panel);
  Ahead ahead(panels.next, panels.next == nullptr ? 0 : panels.depth, panels.n * kSize, panels.ld * kSize,
              count_steps<A, Set>(panels, panels.n));
  for (int64_t column = 0; column < panels.n; column += kWidth) {
    multiply<A, Set>(panels, panels.panel + column * panels.depth, column, std::min(kWidth, panels.n - column),
                     ahead);
  }
}

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#define MPX_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define MPX_AVX2 __attribute__((target("avx2,fma")))
#else
#define MPX_AVX512
#define MPX_AVX2
#endif
// Not templates, because each function has its own target attribute.
MPX_AVX512 void panels_avx512(const Panels<float>& p) { panels<float, Avx512>(p); }
MPX_AVX512 void panels_avx512(const Panels<double>& p) { panels<double, Avx512>(p); }
MPX_AVX2 void panels_avx2(const Panels<float>& p) { panels<float, Avx2>(p); }
MPX_AVX2 void panels_avx2(const Panels<double>& p) { panels<double, Avx2>(p); }
void panels_plain(const Panels<float>& p) { panels<float, Plain>(p); }
void panels_plain(const Panels<double>& p) { panels<double, Plain>(p); }

// Widens `columns` elements of each row: out [rows][ld_out] = source [rows][ld].
template <class T>
MPX_INLINE void widen(const T* source, int64_t ld, int64_t rows, int64_t columns, Wide<T>* out, int64_t ld_out) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) out[i * ld_out + j] = load(source[i * ld + j]);
  }
}
template <class T>
MPX_INLINE void store_sums(const GroupedProblem& problem, const GroupedBlock& block, const float* sums) {
  const int64_t n = block.n();
  const float factor = problem.factor;
  for (int64_t i = 0; i < block.m(); ++i) {
    const int64_t at = (block.m_begin + i) * problem.ldc + block.n_begin;
    const float* const from = sums + i * n;
    if (problem.wide_c) {
      float* const to = static_cast<float*>(problem.c) + at;
      for (int64_t j = 0; j < n; ++j) to[j] = problem.adds ? to[j] + from[j] * factor : from[j] * factor;
    } else {
      T* const to = static_cast<T*>(problem.c) + at;
      for (int64_t j = 0; j < n; ++j)
        to[j] = store<T>(problem.adds ? load(to[j]) + from[j] * factor : from[j] * factor);
    }
  }
}
#define MPX_CLONED(replicas, T)                                                                      \
  replicas void widen_rows(const T* source, int64_t ld, int64_t rows, int64_t columns, Wide<T>* out, \
                           int64_t ld_out) {                                                         \
    widen(source, ld, rows, columns, out, ld_out);                                                   \
  }
MPX_CLONED(MPX_VECTOR_CLONES, float)
MPX_CLONED(MPX_VECTOR_CLONES, double)
MPX_CLONED(MPX_HALF_CLONES, Bf16)
MPX_CLONED(MPX_HALF_CLONES, F16)
#undef MPX_CLONED
#define MPX_CLONED(T)                                                                                                \
  MPX_HALF_CLONES void store_block(T, const GroupedProblem& problem, const GroupedBlock& block, const float* sums) { \
    store_sums<T>(problem, block, sums);                                                                             \
  }
MPX_CLONED(Bf16)
MPX_CLONED(F16)
#undef MPX_CLONED

template <class T>
void block_product(const GroupedWork& work, const GroupedWork* next, char* scratch,
                   void (*product)(const Panels<Wide<T>>&)) {
  const GroupedProblem& problem = work.problem;
  const GroupedBlock& block = work.block;
  using A = Wide<T>;
  const auto* a = static_cast<const T*>(problem.a);
  const auto* b = static_cast<const T*>(problem.b);
  auto* const panel = reinterpret_cast<A*>(scratch);
  A *const left = panel + kDepth * kBlockN, *const right = left + kBlockM * kLeftRow;
  const int64_t m = block.m(), n = block.n();
  Panels<A> of{left, problem.a_by_k, nullptr, problem.ldb, problem.b_by_n, nullptr, problem.ldc, problem.adds, m, n,
               0,    problem.factor, panel,   nullptr};
  if constexpr (kIsHalf<T>) {
    of.right = right, of.ld = problem.b_by_n ? kDepth : n;
    of.result = right + kBlockN * kDepth, of.ld_result = n, of.adds = false, of.factor = 1;
  } else {
    of.result = static_cast<A*>(problem.c) + block.m_begin * problem.ldc + block.n_begin;
  }
  for (int64_t from = 0; from < problem.k; from += kDepth, of.adds = true) {
    of.depth = std::min(kDepth, problem.k - from);
    if (problem.a_by_k) widen_rows(a + from * problem.lda + block.m_begin, problem.lda, of.depth, m, left, kBlockM);
    else widen_rows(a + block.m_begin * problem.lda + from, problem.lda, m, of.depth, left, kLeftRow);
    const T* const b_from =
        problem.b_by_n ? b + block.n_begin * problem.ldb + from : b + from * problem.ldb + block.n_begin;
    if constexpr (kIsHalf<T>) {
      if (problem.b_by_n) widen_rows(b_from, problem.ldb, n, of.depth, right, kDepth);
      else widen_rows(b_from, problem.ldb, of.depth, n, right, n);
    } else {
      of.right = b_from;
      of.next =
          from + kDepth < problem.k ? b_from + kDepth * (problem.b_by_n ? 1 : problem.ldb) : first_of_right<T>(next);
    }
    product(of);
  }
  if constexpr (kIsHalf<T>) store_block(T{}, problem, block, of.result);
}

}  // namespace

GroupedCut wide_cut() { return {kBlockM, kBlockN, (kDepth * kBlockN + kBlockM * kLeftRow) * 8}; }
GroupedCut half_cut() {
  return {kBlockM, kBlockN, (kDepth * kBlockN + kBlockM * kLeftRow + kBlockN * kDepth + kBlockM * kBlockN) * 4};
}

#define MPX_BLOCK(name, T, product)                                            \
  void name(const GroupedWork& work, const GroupedWork* next, char* scratch) { \
    block_product<T>(work, next, scratch, product);                            \
  }
#define MPX_BLOCKS(name, T)                  \
  MPX_BLOCK(name##_avx512, T, panels_avx512) \
  MPX_BLOCK(name##_avx2, T, panels_avx2)     \
  MPX_BLOCK(name##_plain, T, panels_plain)
MPX_BLOCKS(float, float)
MPX_BLOCKS(double, double)
MPX_BLOCKS(bf16, Bf16)
MPX_BLOCKS(f16, F16)
#undef MPX_BLOCKS
#undef MPX_BLOCK

}  // namespace metroplex::kernels

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/permutation.h"
#include "kernels/vector_math.h"

#pragma GCC optimize("O3")

namespace metroplex::kernels {
namespace {

template <class T>
MPX_INLINE void sum_loop(const T* x, const int64_t* rows, T* out, const SumShape& shape, int64_t begin, int64_t end) {
  constexpr int64_t kColumns = 256;
  Wide<T> sums[kColumns];
  for (int64_t t = begin; t < end; ++t) {
    const int64_t* terms = rows + t * shape.terms;
    for (int64_t first = 0; first < shape.width; first += kColumns) {
      const int64_t columns = std::min(kColumns, shape.width - first);
      for (int64_t c = 0; c < columns; ++c) sums[c] = 0;
      for (int64_t j = 0; j < shape.terms; ++j) {
        if (terms[j] < 0) continue;
        const T* __restrict row = x + terms[j] * shape.width + first;
        for (int64_t c = 0; c < columns; ++c) sums[c] += load(row[c]);
      }
      T* __restrict target = out + t * shape.width + first;
      for (int64_t c = 0; c < columns; ++c) target[c] = store<T>(sums[c]);
    }
  }
}

#define MPX_SUM(replicas, T)                                                                           \
  replicas void run_sum(const T* x, const int64_t* rows, T* out, const SumShape& shape, int64_t begin, \
                        int64_t end) {                                                                 \
    sum_loop(x, rows, out, shape, begin, end);                                                         \
  }
MPX_SUM(MPX_VECTOR_CLONES, float)
MPX_SUM(MPX_VECTOR_CLONES, double)
MPX_SUM(MPX_HALF_CLONES, Bf16)
MPX_SUM(MPX_HALF_CLONES, F16)
#undef MPX_SUM

int64_t rows_a_task(int64_t width) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, width)); }

}  // namespace

void plan_permutation(const int64_t* experts, const PermutationPlan& plan, const PermutationShape& shape) {
  const int64_t n = shape.num_experts;
  std::fill(plan.counts, plan.counts + n, 0);
  std::fill(plan.source, plan.source + shape.num_rows, -1);
  const auto place = [&](int64_t assignment) {
    const int64_t e = experts[assignment] - shape.first;
    return experts[assignment] >= 0 && e >= 0 && e < n ? e : -1;
  };
  for (int64_t a = 0; a < shape.assignments; ++a) {
    if (const int64_t e = place(a); e >= 0) ++plan.counts[e];
  }
  // next: next row of each expert's first copy. step: distance from an expert's copy to its next copy.
  std::vector<int64_t> next(static_cast<size_t>(n)), step(static_cast<size_t>(n));
  int64_t row = 0;
  for (int64_t begin = 0; begin < n; begin += shape.chunk) {
    const int64_t start = row, end = std::min(n, begin + shape.chunk);
    for (int64_t e = begin; e < end; ++e) {
      next[static_cast<size_t>(e)] = row;
      row += shape.capacity > 0 ? shape.capacity : plan.counts[e];
    }
    for (int64_t e = begin; e < end; ++e) step[static_cast<size_t>(e)] = row - start;
    row = start + (row - start) * shape.copies;
  }
  for (int64_t a = 0; a < shape.assignments; ++a) {
    const int64_t e = place(a);
    for (int64_t copy = 0; copy < shape.copies; ++copy) {
      const int64_t to = e < 0 ? -1 : next[static_cast<size_t>(e)] + copy * step[static_cast<size_t>(e)];
      plan.rows[a * shape.copies + copy] = to;
      if (to >= 0) plan.source[to] = a;
    }
    if (e >= 0) ++next[static_cast<size_t>(e)];
  }
}

void plan_regroup(const int64_t* table, const PermutationPlan& plan, const RegroupShape& shape) {
  const int64_t n = shape.num_experts;
  std::fill(plan.rows, plan.rows + shape.num_in, -1);
  std::fill(plan.source, plan.source + shape.num_out, -1);
  std::fill(plan.counts, plan.counts + n, 0);
  for (int64_t i = 0; i < shape.ranks * n; ++i) plan.counts[i % n] += table[i];
  std::vector<int64_t> next(static_cast<size_t>(n), 0);
  for (int64_t e = 1; e < n; ++e)
    next[static_cast<size_t>(e)] = next[static_cast<size_t>(e - 1)] + plan.counts[e - 1];
  int64_t from = 0;
  for (int64_t i = 0; i < shape.ranks * n; ++i) {
    for (int64_t k = 0; k < table[i]; ++k) {
      const int64_t to = next[static_cast<size_t>(i % n)]++;
      plan.rows[from + k] = to;
      plan.source[to] = from + k;
    }
    from += shape.capacity > 0 ? shape.capacity : table[i];
  }
}

template <class T>
void permute_rows(const T* x, const int64_t* source, T* out, const RowsShape& shape, const RowNumbers& numbers) {
  at::parallel_for(0, shape.num_rows, rows_a_task(shape.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (source[r] < 0) continue;
      const T* row = x + source[r] / shape.divisor * shape.width;
      std::copy(row, row + shape.width, out + r * shape.width);
      numbers.move(source[r], r);
    }
  });
}

template <class T>
void sum_rows(const T* x, const int64_t* rows, T* out, const SumShape& shape) {
  at::parallel_for(0, shape.tokens, rows_a_task(shape.width * shape.terms),
                   [&](int64_t begin, int64_t end) { run_sum(x, rows, out, shape, begin, end); });
}

#define MPX_INSTANTIATE(T)                                                                          \
  template void permute_rows<T>(const T*, const int64_t*, T*, const RowsShape&, const RowNumbers&); \
  template void sum_rows<T>(const T*, const int64_t*, T*, const SumShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/column_sums.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {
namespace {

#define MPX_ROW(T)                                                                                 \
  MPX_HALF_CLONES void add_columns(Wide<T>* __restrict sums, const T* __restrict row, int64_t n) { \
    for (int64_t i = 0; i < n; ++i) sums[i] += load(row[i]);                                       \
  }                                                                                                \
  static_assert(true)
MPX_FOR_ELEMENTS(MPX_ROW);
#undef MPX_ROW

}  // namespace

template <class T>
void column_sums(Wide<T>* out, const T* x, const ColumnSumsShape& shape) {
  const int64_t grain = std::max<int64_t>(64, 65536 / std::max<int64_t>(1, shape.rows));
  at::parallel_for(0, shape.width, grain, [&](int64_t begin, int64_t end) {
    std::vector<Wide<T>> sums(static_cast<size_t>(end - begin));
    for (int64_t row = 0; row < shape.rows; ++row)
      add_columns(sums.data(), x + row * shape.stride + begin, end - begin);
    for (int64_t i = begin; i < end; ++i)
      out[i] = (shape.adds ? out[i] : Wide<T>(0)) + sums[static_cast<size_t>(i - begin)];
  });
}

template <class T>
void sum_lines(const LineSumsTable<T>& table) {
  for (const LineSums<T>& sums : table.all) {
    for (int64_t i = 0; i < sums.width; ++i) {
      T sum = 0;
      for (int64_t line = 0; line < sums.count; ++line) sum += sums.lines[line * sums.stride + i];
      sums.out[i] = sums.adds ? sums.out[i] + sum : sum;
    }
  }
}

template void sum_lines<float>(const LineSumsTable<float>&);
template void sum_lines<double>(const LineSumsTable<double>&);
#define MPX_INSTANTIATE(T) template void column_sums<T>(Wide<T>*, const T*, const ColumnSumsShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels

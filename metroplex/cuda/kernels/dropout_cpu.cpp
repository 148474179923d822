#include <ATen/Parallel.h>

#include "cuda/kernels/dropout.h"
#include "cuda/kernels/dropout_rows.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::cuda::kernels {
namespace {

// x86-64-v4 (as half types have it) multiplies 64-bit lanes in one instruction.
#define MPX_ROWS(In, Out)                                                                                \
  MPX_HALF_CLONES void run_rows(const DropoutOperands<In, Out>& o, const DropoutShape& s, int64_t begin, \
                                int64_t end) {                                                           \
    for (int64_t row = begin; row < end; ++row) drop_row(o, s, row);                                     \
  }
MPX_FOR_ELEMENT_CASTS(MPX_ROWS)
#undef MPX_ROWS

}  // namespace

template <class In, class Out>
void bias_dropout_add(const DropoutOperands<In, Out>& operands, const DropoutShape& shape) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.width));
  at::parallel_for(0, shape.num_rows, grain,
                   [&](int64_t begin, int64_t end) { run_rows(operands, shape, begin, end); });
}

#define MPX_INSTANTIATE(In, Out) \
  template void bias_dropout_add<In, Out>(const DropoutOperands<In, Out>&, const DropoutShape&)
MPX_FOR_ELEMENT_CASTS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels

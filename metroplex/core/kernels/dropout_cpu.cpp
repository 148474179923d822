#include <ATen/Parallel.h>

#include "kernels/dropout.h"
#include "kernels/dropout_rows.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {
namespace {

// out[i] = value(i) [+ residual[i]] for i in [begin, end); value may read out.
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
MPX_INLINE void drop_row(const DropoutOperands<In, Out, Wide<In>>& operands, const DropoutShape& shape, int64_t row) {
  const In* x = operands.x + row * shape.width;
  const Wide<In>* bias = operands.bias;
  const Out* residual = operands.residual == nullptr ? nullptr : operands.residual + row * shape.width;
  Out* out = operands.out + row * shape.width;
  if (shape.probability > 0) {
    const DropoutRow place = dropout_row(shape, row);
    Wide<In> factor[kDrawn];
    for (int64_t first = -(place.start % 4); first < shape.width; first += kDrawn) {
      draw(shape, place, first, factor);
      const int64_t begin = first < 0 ? 0 : first, end = first + kDrawn < shape.width ? first + kDrawn : shape.width;
      if (bias != nullptr) {
        add_residual(residual, out, begin, end,
                     [&](int64_t i) { return (load(x[i]) + bias[i]) * factor[i - first]; });
      } else {
        add_residual(residual, out, begin, end, [&](int64_t i) { return load(x[i]) * factor[i - first]; });
      }
    }
  } else if (bias != nullptr) {
    add_residual(residual, out, 0, shape.width, [&](int64_t i) { return load(x[i]) + bias[i]; });
  } else {
    add_residual(residual, out, 0, shape.width, [&](int64_t i) { return load(x[i]); });
  }
}

}  // namespace

#define MPX_ROWS(In, Out)                                                                                       \
  MPX_HALF_CLONES void drop_rows(const DropoutOperands<In, Out, Wide<In>>& operands, const DropoutShape& shape, \
                                 int64_t begin, int64_t end) {                                                  \
    for (int64_t row = begin; row < end; ++row) drop_row(operands, shape, row);                                 \
  }
MPX_FOR_ELEMENT_CASTS(MPX_ROWS)
#undef MPX_ROWS

template <class In, class Out>
void bias_dropout_add(const DropoutOperands<In, Out>& operands, const DropoutShape& shape) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.width));
  const WideRow<In> bias(operands.bias, shape.width);
  const auto wide = widened(operands, bias);
  at::parallel_for(0, shape.num_rows, grain, [&](int64_t begin, int64_t end) { drop_rows(wide, shape, begin, end); });
}

#define MPX_INSTANTIATE(In, Out) \
  template void bias_dropout_add<In, Out>(const DropoutOperands<In, Out>&, const DropoutShape&)
MPX_FOR_ELEMENT_CASTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels

#include "kernels/activation_rows.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {
namespace {

template <Activation kind, class A>
MPX_INLINE void values(const A* __restrict x, int64_t n, A* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] = activation_value<kind, VectorMath>(x[i]);
}

template <Activation kind, class A>
MPX_INLINE void slopes(const A* __restrict x, int64_t n, A* __restrict y, A* __restrict slope) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] = activation_value<kind, VectorMath>(x[i]);
    slope[i] = activation_slope<kind, VectorMath>(x[i]);
  }
}

}  // namespace

#define MPX_KIND(kind, call) \
  case Activation::kind:     \
    return call
#define MPX_KINDS(function, ...)                                             \
  switch (kind) {                                                            \
    MPX_KIND(gelu, function<Activation::gelu>(__VA_ARGS__));                 \
    MPX_KIND(gelu_tanh, function<Activation::gelu_tanh>(__VA_ARGS__));       \
    MPX_KIND(quick_gelu, function<Activation::quick_gelu>(__VA_ARGS__));     \
    MPX_KIND(silu, function<Activation::silu>(__VA_ARGS__));                 \
    MPX_KIND(relu, function<Activation::relu>(__VA_ARGS__));                 \
    MPX_KIND(squared_relu, function<Activation::squared_relu>(__VA_ARGS__)); \
  }

MPX_VECTOR_CLONES void activation_values(Activation kind, const float* x, int64_t n, float* y) {
  MPX_KINDS(values, x, n, y);
}
void activation_values(Activation kind, const double* x, int64_t n, double* y) { MPX_KINDS(values, x, n, y); }
MPX_VECTOR_CLONES void activation_slopes(Activation kind, const float* x, int64_t n, float* y, float* slope) {
  MPX_KINDS(slopes, x, n, y, slope);
}
void activation_slopes(Activation kind, const double* x, int64_t n, double* y, double* slope) {
  MPX_KINDS(slopes, x, n, y, slope);
}
#undef MPX_KINDS
#undef MPX_KIND

}  // namespace metroplex::kernels

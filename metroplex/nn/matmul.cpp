#include "nn/matmul.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "cuda/kernels/accumulate.h"
#include "nn/torch_compat.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// libtorch refuses a direct call of oneDNN, fp32 ones too, where oneDNN could not take bf16: on older processors, and
// where ONEDNN_MAX_CPU_ISA holds it to what they have.
bool onednn_is_taken() {
#if defined(__x86_64__)
  const auto supported = c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_bf16_supported", ""});
  if (!supported || !__builtin_cpu_supports("avx512f")) return false;
  torch::jit::Stack stack;
  supported->callBoxed(stack);
  return stack.back().toBool();
#else
  return false;
#endif
}

bool use_onednn_at_all() {
  static const bool taken = at::globalContext().hasMKLDNN() && onednn_is_taken();
  return taken && at::globalContext().userEnabledMkldnn();
}

// Below a million products the 10 us that oneDNN takes to find its kernel weigh more than the faster loop.
bool use_onednn(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kFloat && a.is_cpu() && a.size(0) * a.size(1) * b.size(1) > (int64_t{1} << 20) &&
         use_onednn_at_all();
}

void product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (use_onednn(a, b)) {
    at::native::mkldnn_matmul(a, b, out, 0.0F, 1.0F);
  } else {
    at::Tensor target = out;
    at::mm_out(target, a, b);
  }
}

// Where half rows can be added to fp32 ones as they are. (On a GPU the operators of libtorch read mixed types.)
bool adds_halves(const at::Tensor& gradient, const at::Tensor& x) {
  return gradient.scalar_type() == at::kFloat && gradient.is_contiguous() && gradient.is_cpu() &&
         wide_type(x.scalar_type()) != x.scalar_type();
}

// Calls body(Bf16{}) or body(F16{}).
template <class Body>
void dispatch_half(at::ScalarType type, const Body& body) {
  type == at::kHalf ? body(cuda::kernels::F16{}) : body(cuda::kernels::Bf16{});
}

void add_product(at::Tensor& gradient, const at::Tensor& product) {
  if (!adds_halves(gradient, product)) {
    gradient.add_(product);
    return;
  }
  dispatch_half(product.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    cuda::kernels::add_elements<T>(elements<float>(gradient), elements<T>(product), product.numel());
  });
}

at::Tensor shaped_like(const at::Tensor& x, int64_t features) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = features;
  return at::empty(sizes, x.options());
}

}  // namespace

at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  at::Tensor out = shaped_like(x, weight.size(0));
  product(out.view({-1, weight.size(0)}), rows_of(x), weight.t());
  if (bias.defined()) out.add_(bias);
  return out;
}

at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& weight) {
  at::Tensor out = shaped_like(dy, weight.size(1));
  product(out.view({-1, weight.size(1)}), rows_of(dy), weight);
  return out;
}

void add_linear_weight_gradient(at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x) {
  const at::Tensor dy_rows = rows_of(dy), x_rows = rows_of(x);
  const bool wider = gradient.scalar_type() != dy_rows.scalar_type();
  if (wider && gradient.is_cuda() && gradient.scalar_type() == at::kFloat) {
    at::addmm_out(gradient, gradient, dy_rows.t(), x_rows, at::kFloat);  // half products, fp32 sums
  } else if (wider) {
    add_product(gradient, at::mm(dy_rows.t(), x_rows));
  } else if (use_onednn(dy_rows.t(), x_rows)) {
    at::native::mkldnn_matmul(dy_rows.t(), x_rows, gradient, 1.0F, 1.0F);
  } else {
    at::addmm_out(gradient, gradient, dy_rows.t(), x_rows);
  }
}

void add_linear_bias_gradient(at::Tensor& gradient, const at::Tensor& dy) {
  const at::Tensor rows = rows_of(dy);
  if (!adds_halves(gradient, rows)) {
    gradient.add_(at::sum(rows, {0}, false, gradient.scalar_type()));
    return;
  }
  const at::Tensor packed = rows.contiguous();
  dispatch_half(packed.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    cuda::kernels::add_column_sums<T>(elements<float>(gradient), elements<T>(packed), packed.size(0), packed.size(1));
  });
}

}  // namespace metroplex::nn

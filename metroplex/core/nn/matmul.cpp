#include "nn/matmul.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <climits>

#include "kernels/accumulate.h"
#include "kernels/column_sums.h"
#include "kernels/grouped_product.h"
#include "nn/product_choice.h"
#include "nn/torch_compat.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

at::Tensor flatten_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// libtorch rejects direct oneDNN calls, even in fp32, if oneDNN has no bf16: on older CPUs, or if ONEDNN_MAX_CPU_ISA
// restricts the instruction set.
bool is_onednn_supported() {
  const auto supported = c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_bf16_supported", ""});
  if (!supported) return false;
  torch::jit::Stack stack;
  supported->callBoxed(stack);
  return stack.back().toBool();
}

bool is_onednn_enabled() {
  static const bool is_supported = at::globalContext().hasMKLDNN() && is_onednn_supported();
  return is_supported && product_choice().onednn_floats && at::globalContext().userEnabledMkldnn();
}

// Below a million multiply-adds, oneDNN's 10 us kernel lookup costs more than its faster loop saves.
bool use_onednn(const device::Target& target, const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kFloat && !target.gpu() && a.size(0) * a.size(1) * b.size(1) > (int64_t{1} << 20) &&
         is_onednn_enabled();
}

double product_flops(const at::Tensor& a, const at::Tensor& b) {
  return 2.0 * static_cast<double>(a.size(0)) * static_cast<double>(a.size(1)) * static_cast<double>(b.size(1));
}

// out = a b + beta out. It bypasses libtorch's dispatcher, so it is launched and recorded as one of our kernels.
void onednn_product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, float beta) {
  at::native::mkldnn_matmul(a, b, out, beta, 1.0F);
}

bool needs_widening(const at::Tensor& gradient, const at::Tensor& x) {
  return gradient.scalar_type() == at::kFloat && is_half(x) && gradient.is_contiguous() && x.is_contiguous();
}

template <class Body>
void dispatch_half(at::ScalarType type, const Body& body) {
  type == at::kHalf ? body(kernels::F16{}) : body(kernels::Bf16{});
}

bool can_sum_bf16(const device::Target& target, const at::Tensor& gradient, const at::Tensor& x) {
  return gradient.scalar_type() == at::kFloat && x.scalar_type() == at::kBFloat16 && !target.gpu() &&
         gradient.is_contiguous();
}

bool use_mkl_sums(const at::Tensor& gradient, const at::Tensor& x) {
  const auto fits = [](const at::Tensor& rows) { return std::max(rows.size(0), rows.size(1)) <= INT_MAX; };
  return product_choice().mkl_bf16_sums && fits(gradient) && fits(x);
}

// gradient [out, in] = or += dy^T x in fp32, by MKL.
void mkl_weight_gradient(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x, bool adds) {
  constexpr int kRowMajor = 101, kNoTranspose = 111, kTransposed = 112;
  if (x.size(0) == 0) {
    if (!adds) gradient.zero_();
    return;
  }
  const auto out = static_cast<int>(dy.size(1)), in = static_cast<int>(x.size(1)), rows = static_cast<int>(x.size(0));
  cblas_gemm_bf16bf16f32(kRowMajor, kTransposed, kNoTranspose, out, in, rows, 1.0F, dy.const_data_ptr(), out,
                         x.const_data_ptr(), in, adds ? 1.0F : 0.0F, gradient.mutable_data_ptr<float>(), in);
}

void own_weight_gradient(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x, bool adds) {
  int64_t arguments[kernels::kGroupedFields];
  arguments[kernels::kPointerA] = reinterpret_cast<int64_t>(dy.const_data_ptr());
  arguments[kernels::kPointerB] = reinterpret_cast<int64_t>(x.const_data_ptr());
  arguments[kernels::kPointerC] = reinterpret_cast<int64_t>(gradient.mutable_data_ptr());
  arguments[kernels::kLeadingA] = dy.size(1);
  arguments[kernels::kLeadingB] = arguments[kernels::kLeadingC] = x.size(1);
  arguments[kernels::kGroupRows] = x.size(0);
  arguments[kernels::kGroupAdds] = adds;
  arguments[kernels::kGroupFactor] = kernels::make_factor({}, 0);
  kernels::grouped_product<kernels::Bf16>(arguments, {.op = kernels::GroupedOp::weight_gradient,
                                                      .groups = 1,
                                                      .rows = x.size(0),
                                                      .in = x.size(1),
                                                      .out = dy.size(1)});
}

// Processes blocks of gradient rows, so that the product of a block is still in cache when it is added.
void put_rounded_product(const device::Target& target, const at::Tensor& gradient, const at::Tensor& dy_t,
                         const at::Tensor& x, bool adds) {
  constexpr int64_t kBytes = int64_t{8} << 20;
  const int64_t row = std::max<int64_t>(1, x.size(1) * x.element_size());
  const int64_t rows = std::max<int64_t>(1, kBytes / row);
  for (int64_t begin = 0; begin < dy_t.size(0); begin += rows) {
    const int64_t n = std::min(rows, dy_t.size(0) - begin);
    const at::Tensor left = dy_t.narrow(0, begin, n), product = at::mm(left, x);
    device::issued(target, {"mm", {&left, &x}, {&product}, {}, product_flops(left, x)});
    put_product(target, gradient.narrow(0, begin, n), product, adds);
  }
}

// True if our kernel sums the rows.
bool can_sum_rows(const at::Tensor& gradient, const at::Tensor& rows) {
  return gradient.is_contiguous() && gradient.scalar_type() == acc_type(rows.scalar_type());
}

void own_bias_gradient(const device::Target& target, const at::Tensor& gradient, const at::Tensor& rows, bool adds) {
  const kernels::ColumnSumsShape shape{rows.size(0), rows.size(1), rows.stride(0), adds};
  dispatch_element(rows.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using W = kernels::Wide<T>;
    at::Tensor lines;
    if (target.gpu()) lines = at::empty({kernels::column_lines<T>(shape), shape.width}, gradient.options());
    device::launch(
        target, {"column_sums", {&rows, adds ? &gradient : nullptr}, {&gradient}, {{"adds", adds}}, 0, {&lines}},
        [](W* out, const T* x, W*, const kernels::ColumnSumsShape& shape) { kernels::column_sums(out, x, shape); },
        kernels::column_sums_cuda<T>, elements<W>(gradient), static_cast<const T*>(elements<T>(rows)),
        elements<W>(lines), shape);
  });
}

}  // namespace

at::Tensor linear_product(const device::Target& target, const at::Tensor& x, const at::Tensor& matrix,
                          const at::Tensor& bias) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = matrix.size(1);
  const at::Tensor out = at::empty(sizes, x.options()), a = flatten_rows(x);
  at::Tensor rows = out.view({-1, matrix.size(1)});
  const double flops = product_flops(a, matrix);
  if (use_onednn(target, a, matrix)) {
    device::launch(target, {"onednn_product", {&a, &matrix}, {&rows}, {}, flops}, onednn_product, device::CpuOnly{},
                   rows, a, matrix, 0.0F);
  } else if (target.gpu() && bias.defined()) {
    // libtorch fuses a 1-D bias into the cuBLASLt epilogue.
    at::addmm_out(rows, bias, a, matrix);
    device::issued(target, {"addmm", {&bias, &a, &matrix}, {&rows}, {}, flops});
    return out;
  } else {
    at::mm_out(rows, a, matrix);
    device::issued(target, {"mm", {&a, &matrix}, {&rows}, {}, flops});
  }
  if (bias.defined()) out.add_(bias);
  return out;
}

// libtorch's half products have fp32 results on GPUs only. The CPU widens x, and the matrix by blocks of its columns.
at::Tensor wide_linear_product(const device::Target& target, const at::Tensor& x, const at::Tensor& matrix) {
  if (!is_half(x)) return linear_product(target, x, matrix);
  constexpr int64_t kBytes = int64_t{8} << 20;
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = matrix.size(1);
  const at::Tensor out = at::empty(sizes, x.options().dtype(at::kFloat)), a = flatten_rows(x);
  at::Tensor rows = out.view({-1, matrix.size(1)});
  if (target.gpu()) {
    if (!target.meta) at::mm_out(rows, a, matrix, at::kFloat);
    device::issued(target, {"mm", {&a, &matrix}, {&rows}, {}, product_flops(a, matrix)});
    return out;
  }
  const at::Tensor left = a.to(at::kFloat);
  const int64_t column = std::max<int64_t>(1, matrix.size(0) * static_cast<int64_t>(sizeof(float)));
  const int64_t columns = std::max<int64_t>(1, kBytes / column);
  for (int64_t begin = 0; begin < matrix.size(1); begin += columns) {
    const int64_t n = std::min(columns, matrix.size(1) - begin);
    const at::Tensor right = matrix.narrow(1, begin, n).to(at::kFloat);
    at::Tensor block = rows.narrow(1, begin, n);
    at::mm_out(block, left, right);
    device::issued(target, {"mm", {&left, &right}, {&block}, {}, product_flops(left, right)});
  }
  return out;
}

void put_product(const device::Target& target, const at::Tensor& gradient, const at::Tensor& product, bool adds) {
  if (!needs_widening(gradient, product) || !(adds || target.gpu())) {
    adds ? gradient.add_(product) : gradient.copy_(product);
    return;
  }
  dispatch_half(product.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(target, {"add_elements", {adds ? &gradient : nullptr, &product}, {&gradient}, {{"adds", adds}}},
                   kernels::add_elements<T>, kernels::add_elements_cuda<T>, elements<float>(gradient),
                   static_cast<const T*>(elements<T>(product)), product.numel(), adds);
  });
}

void put_linear_weight_gradient(const device::Target& target, at::Tensor& gradient, const at::Tensor& dy,
                                const at::Tensor& x, bool adds) {
  const at::Tensor dy_t = flatten_rows(dy).t(), x_rows = flatten_rows(x);
  const bool wider = gradient.scalar_type() != dy_t.scalar_type();
  const double flops = product_flops(dy_t, x_rows);
  const at::Tensor* const before = adds ? &gradient : nullptr;
  if (can_sum_bf16(target, gradient, x_rows)) {
    const bool by_mkl = use_mkl_sums(gradient, x_rows);
    if (by_mkl || product_choice().own_bf16_sums) {
      const at::Tensor left = flatten_rows(dy).contiguous(), right = x_rows.contiguous();
      device::launch(target, {"bf16_weight_gradient", {&left, &right, before}, {&gradient}, {}, flops},
                     by_mkl ? mkl_weight_gradient : own_weight_gradient, device::CpuOnly{}, gradient, left, right,
                     adds);
      return;
    }
  }
  if (wider && !(target.gpu() && gradient.scalar_type() == at::kFloat)) {
    return put_rounded_product(target, gradient, dy_t, x_rows, adds);
  }
  if (!wider && use_onednn(target, dy_t, x_rows)) {
    device::launch(target, {"onednn_product", {&dy_t, &x_rows, before}, {&gradient}, {}, flops}, onednn_product,
                   device::CpuOnly{}, gradient, dy_t, x_rows, adds ? 1.0F : 0.0F);
    return;
  }
  if (!wider) {
    adds ? at::addmm_out(gradient, gradient, dy_t, x_rows) : at::mm_out(gradient, dy_t, x_rows);
  } else if (!target.meta) {  // half products, fp32 sums
    adds ? at::addmm_out(gradient, gradient, dy_t, x_rows, at::kFloat)
         : at::mm_out(gradient, dy_t, x_rows, at::kFloat);
  }
  device::issued(target, {adds ? "addmm" : "mm", {before, &dy_t, &x_rows}, {&gradient}, {}, flops});
}

void put_linear_bias_gradient(const device::Target& target, at::Tensor& gradient, const at::Tensor& dy, bool adds) {
  const at::Tensor rows = flatten_rows(dy);
  if (can_sum_rows(gradient, rows)) {
    own_bias_gradient(target, gradient, rows.stride(1) == 1 ? rows : rows.contiguous(), adds);
  } else {
    if (adds) gradient.add_(at::sum(rows, {0}, false, gradient.scalar_type()));
    else at::sum_out(gradient, rows, {0}, false, gradient.scalar_type());
  }
}

// gradient [width] += or = the sum of the lines [n, width].
struct PutLines {
  at::Tensor gradient, lines;
  bool adds = false;

  // Whether the kernel can write the gradient itself.
  bool is_direct() const { return gradient.scalar_type() == lines.scalar_type() && gradient.is_contiguous(); }
};

static void put_line_sums(const device::Target& target, const std::vector<PutLines>& all) {
  std::vector<at::Tensor> sums;
  std::vector<const at::Tensor*> reads, writes;
  for (const PutLines& one : all)
    sums.push_back(one.is_direct() ? one.gradient : at::empty({one.lines.size(1)}, one.lines.options()));
  for (size_t i = 0; i < all.size(); ++i) {
    reads.push_back(&all[i].lines);
    if (all[i].adds && all[i].is_direct()) reads.push_back(&sums[i]);
    writes.push_back(&sums[i]);
  }
  dispatch_wide(all.front().lines, [&](auto zero) {
    using T = decltype(zero);
    kernels::LineSumsTable<T> table;
    MPX_ASSERT(all.size() <= table.all.size(), "sums of ", all.size(), " parameters in one launch");
    for (size_t i = 0; i < all.size(); ++i) {
      const at::Tensor& lines = all[i].lines;
      table.all[i] = {elements<T>(lines), lines.size(0),        lines.stride(0),
                      lines.size(1),      elements<T>(sums[i]), all[i].adds && all[i].is_direct()};
    }
    device::launch(target, {"sum_lines", reads, writes}, kernels::sum_lines<T>, kernels::sum_lines_cuda<T>, table);
  });
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].is_direct()) continue;
    all[i].adds ? all[i].gradient.add_(sums[i]) : all[i].gradient.copy_(sums[i]);
  }
}

// Accumulates the gradients of all parameters in one launch, inside the innermost call of accumulate_or_write().
static void put_all_line_sums(const device::Target& target, const std::vector<ParamLines>& all,
                              const std::vector<PutLines>& gradients) {
  if (gradients.size() == all.size()) return put_line_sums(target, gradients);
  const ParamLines& next = all[gradients.size()];
  next.param->accumulate_or_write([&](at::Tensor& main_grad, bool adds) {
    std::vector<PutLines> more = gradients;
    more.push_back({main_grad, next.lines, adds});
    put_all_line_sums(target, all, more);
  });
}

void accumulate_line_sums(const device::Target& target, std::vector<ParamLines> all) {
  std::erase_if(all, [](const ParamLines& one) { return one.param->frozen; });
  if (all.empty()) return;
  for (const ParamLines& one : all)
    MPX_ASSERT((one.param->deferred == nullptr) == (all.front().param->deferred == nullptr), one.param->name, " and ",
               all.front().param->name, " put off their gradients differently");
  if (all.front().param->deferred == nullptr) return put_all_line_sums(target, all, {});
  std::vector<PutLines> sums;
  for (const ParamLines& one : all)
    sums.push_back({at::empty({one.lines.size(1)}, one.lines.options()), one.lines, false});
  put_line_sums(target, sums);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].param->accumulate_or_write(
        [target, sum = sums[i].gradient.unsqueeze(0)](at::Tensor& main_grad, bool adds) {
          put_line_sums(target, {{main_grad, sum, adds}});
        });
  }
}

}  // namespace metroplex::nn

#include "nn/norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "base/error.h"
#include "comm/collectives.h"
#include "nn/autograd_node.h"
#include "kernels/dropout_norm.h"
#include "kernels/heads.h"
#include "kernels/norm.h"
#include "nn/param_init.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

template <class Body>
void dispatch_pair(at::ScalarType in, at::ScalarType out, const Body& body) {
  dispatch_element(out, [&](auto narrow) {
    if (in == out) {
      body(narrow, narrow);
    } else if constexpr (kernels::kIsHalf<decltype(narrow)>) {
      MPX_ASSERT(in == at::kFloat, "a residual stream is of the type of the parameters or fp32");
      body(float{}, narrow);
    } else {
      MPX_ASSERT(false, "no norm kernel for input ", c10::toString(in), " and output ", c10::toString(out));
    }
  });
}

}  // namespace

Norm::Norm(const NormSpec& spec, const LayerContext& context) : spec_(spec), target_(context.target) {
  const Init init = spec.one_plus ? Init::zeros : Init::ones;
  const int64_t width = spec.width * spec.columns.size();
  topology::Placement weight{.partial = spec.partial, .role = spec.role};
  if (spec.columns.size() > 1)
    weight.cuts = {topology::even_shard(0, topology::Axis::tp, width, spec.columns.size(), spec.columns.index())};
  if (spec.has_weight) weight_ = make_param({spec.name + ".weight", {width}, weight, init}, context);
  else weight_.data = at::ones({width}, at::TensorOptions().dtype(context.dtype).device(context.target.memory()));
  if (spec.has_bias()) {
    const topology::Placement placement{.partial = spec.partial, .role = topology::Role::bias};
    bias_ = make_param({spec.name + ".bias", {spec.width}, placement, Init::zeros}, context);
  }
}

struct Norm::Forward {
  at::Tensor x, weight, bias, out, mean, rstd;
  kernels::NormShape shape;

  template <class In, class Out>
  kernels::NormForward<In, Out> operands() const {
    using T = kernels::Wide<In>;
    return {elements<In>(x),    elements<Out>(weight), elements<Out>(bias),
            elements<Out>(out), elements<T>(mean),     elements<T>(rstd)};
  }
  at::Tensor finish(NormSaved* saved) const {
    if (saved != nullptr) *saved = {x, mean, rstd};
    return out;
  }
};

struct Norm::Backward {
  at::Tensor dy, x, weight, mean, rstd, add, dx;
  at::Tensor lines;  // partial sums of the gradients of weight and bias, see kernels::NormBackward
  kernels::NormShape shape;
  bool with_bias = false;
  Param* sum_bias = nullptr;  // its gradient is the sum of dx; null if not required
  device::Target target;

  template <class In, class Out>
  kernels::NormBackward<In, Out> operands() const {
    using T = kernels::Wide<In>;
    return {elements<Out>(dy), elements<In>(x),  elements<Out>(weight), elements<T>(mean), elements<T>(rstd),
            elements<In>(add), elements<In>(dx), elements<T>(lines),    with_bias,         sum_bias != nullptr};
  }
  void run() const {
    dispatch_pair(x.scalar_type(), dy.scalar_type(), [&](auto in, auto narrow) {
      using In = decltype(in);
      using Out = decltype(narrow);
      device::launch(target, {"norm_backward", {&dy, &x, &weight, &mean, &rstd, &add}, {&dx, &lines}},
                     kernels::norm_backward<In, Out>, kernels::norm_backward_cuda<In, Out>, operands<In, Out>(),
                     shape);
    });
  }
};

bool Norm::is_head_norm(int64_t head_dim) const {
  return spec_.rms && spec_.has_weight && spec_.columns.size() == 1 && spec_.width == head_dim &&
         head_dim <= kernels::kMostNormedHead;
}

kernels::NormShape Norm::norm_shape(const at::Tensor& x) const {
  return {x.numel() / spec_.width, spec_.width, spec_.epsilon, spec_.rms, spec_.one_plus};
}

Norm::Forward Norm::start_forward(const at::Tensor& x) const {
  const auto statistics = x.options().dtype(acc_type(x.scalar_type()));
  Forward call{x, weight_.data, bias_.data, {}, {}, {}, norm_shape(x)};
  call.out = at::empty(x.sizes(), x.options().dtype(weight_.data.scalar_type()));
  if (!spec_.rms) call.mean = at::empty({call.shape.rows}, statistics);
  call.rstd = at::empty({call.shape.rows}, statistics);
  return call;
}

// In at least fp32: the factor of the normalized values.
at::Tensor Norm::scale() const {
  const at::Tensor weight = to_wide(weight_.data);
  return spec_.one_plus ? weight + 1 : weight;
}

at::Tensor Norm::apply_to_columns(const at::Tensor& x, NormSaved* saved) const {
  const at::Tensor rows = x.reshape({-1, spec_.width}), wide = to_wide(rows);
  const at::Tensor sums = wide.square().sum(1, /*keepdim=*/true);
  comm::all_reduce(sums, spec_.columns);
  const auto width = static_cast<double>(spec_.width * spec_.columns.size());
  const at::Tensor rstd = (sums / width + spec_.epsilon).rsqrt();
  if (saved != nullptr) *saved = {x, {}, rstd};
  return (wide * rstd * scale()).to(weight_.data.scalar_type()).view(x.sizes());
}

// With g = dy scale and r = rstd over n columns: dx = r (g - x r^2 sum(g x) / n).
at::Tensor Norm::backward_to_columns(const at::Tensor& dy, const NormSaved& saved) {
  const at::Tensor x = to_wide(saved.x.reshape({-1, spec_.width})), wide = to_wide(dy.reshape({-1, spec_.width}));
  Backward call;
  call.lines = (wide * x * saved.rstd).sum(0, /*keepdim=*/true);
  const at::Tensor gradient = wide * scale(), sums = (gradient * x).sum(1, /*keepdim=*/true);
  comm::all_reduce(sums, spec_.columns);
  const auto width = static_cast<double>(spec_.width * spec_.columns.size());
  const at::Tensor dx = (gradient - x * (saved.rstd.square() * sums / width)) * saved.rstd;
  accumulate(call);
  return dx.to(saved.x.scalar_type()).view(saved.x.sizes());
}

at::Tensor Norm::apply(const at::Tensor& x, NormSaved* saved) const {
  const at::NoGradGuard no_grad;
  if (spec_.columns.size() > 1) return apply_to_columns(x.detach(), saved);
  const Forward call = start_forward(x.detach().contiguous());
  dispatch_pair(call.x.scalar_type(), call.out.scalar_type(), [&](auto in, auto narrow) {
    using In = decltype(in);
    using Out = decltype(narrow);
    device::launch(target_,
                   {"norm_forward",
                    {&call.x, &call.weight, &call.bias},
                    {&call.out, &call.mean, &call.rstd},
                    {{"epsilon", spec_.epsilon}, {"rms", spec_.rms}}},
                   kernels::norm_forward<In, Out>, kernels::norm_forward_cuda<In, Out>, call.operands<In, Out>(),
                   call.shape);
  });
  return call.finish(saved);
}

at::Tensor Norm::apply(const BiasDropoutAddOperands& sum, const DropoutMask& mask, NormSaved* saved) const {
  const at::NoGradGuard no_grad;
  const Forward call = start_forward(sum.out);
  const kernels::DropoutNormShape shape{mask.shape, call.shape};
  dispatch_pair(call.x.scalar_type(), call.out.scalar_type(), [&](auto in, auto narrow) {
    using In = decltype(in);
    using Out = decltype(narrow);
    device::launch(target_,
                   {"dropout_norm_forward",
                    {&sum.x, &sum.bias, &sum.residual, &mask.counters, &mask.rows, &call.weight, &call.bias},
                    {&sum.out, &call.out, &call.mean, &call.rstd},
                    {{"epsilon", spec_.epsilon},
                     {"key", mask.shape.key},
                     {"probability", mask.shape.probability},
                     {"first_row", mask.shape.rows.first_row}}},
                   kernels::dropout_norm_forward<In, Out>, kernels::dropout_norm_forward_cuda<In, Out>,
                   sum.elements_as<Out, In>(), call.operands<In, Out>(), shape);
  });
  return call.finish(saved);
}

Norm::Backward Norm::start_backward(const at::Tensor& dy, const NormSaved& saved, Param* sum_bias) const {
  Backward call;
  call.target = target_;
  call.x = saved.x.contiguous();
  call.dy = dy.to(weight_.data.scalar_type()).contiguous();
  call.weight = weight_.data;
  call.mean = saved.mean;
  call.rstd = saved.rstd;
  call.dx = at::empty_like(call.x);
  call.shape = norm_shape(call.x);
  call.with_bias = spec_.has_bias();
  call.sum_bias = sum_bias != nullptr && !sum_bias->frozen ? sum_bias : nullptr;
  const int64_t sums = 1 + (call.with_bias ? 1 : 0) + (call.sum_bias != nullptr ? 1 : 0);
  call.lines =
      at::empty({target_.gpu() ? kernels::norm_lines(call.shape) : 1, sums * spec_.width}, call.rstd.options());
  return call;
}

void Norm::accumulate(const Backward& call) {
  const auto lines = [&](int64_t column) { return call.lines.narrow(1, column, spec_.width); };
  std::vector<ParamLines> all;
  if (spec_.has_weight) all.push_back({&weight_, lines(0)});
  if (spec_.has_bias()) all.push_back({&bias_, lines(spec_.width)});
  if (call.sum_bias != nullptr) all.push_back({call.sum_bias, lines(call.lines.size(1) - spec_.width)});
  accumulate_line_sums(target_, std::move(all));
}

at::Tensor Norm::backward(const at::Tensor& dy, const NormSaved& saved, const at::Tensor& add) {
  const at::NoGradGuard no_grad;
  if (spec_.columns.size() > 1) {
    const at::Tensor dx = backward_to_columns(dy, saved);
    return add.defined() ? dx.add_(add) : dx;
  }
  Backward call = start_backward(dy, saved);
  if (add.defined()) call.add = add.contiguous();
  call.run();
  accumulate(call);
  return call.dx;
}

Norm::SumGradients Norm::backward(const at::Tensor& dy, const at::Tensor& dsum, const NormSaved& saved,
                                  const BiasDropoutAddSaved& sum) {
  const at::NoGradGuard no_grad;
  Backward call = start_backward(dy, saved, sum.bias);
  if (dsum.defined()) call.add = dsum.contiguous();
  const bool drops = sum.mask.shape.probability > 0;
  SumGradients gradients{call.dx, call.dx};
  if (!drops && sum.x_type == call.x.scalar_type()) {
    call.run();
  } else {
    gradients.dx = at::empty(call.x.sizes(), call.x.options().dtype(sum.x_type));
    const kernels::DropoutNormShape shape{sum.mask.shape, call.shape};
    dispatch_pair(call.x.scalar_type(), call.dy.scalar_type(), [&](auto in, auto narrow) {
      using In = decltype(in);
      using Out = decltype(narrow);
      device::launch(
          target_,
          {"dropout_norm_backward",
           {&call.dy, &call.x, &call.weight, &call.mean, &call.rstd, &call.add, &sum.mask.counters, &sum.mask.rows},
           {&call.dx, &gradients.dx, &call.lines},
           {{"key", sum.mask.shape.key},
            {"probability", sum.mask.shape.probability},
            {"first_row", sum.mask.shape.rows.first_row}}},
          kernels::dropout_norm_backward<In, Out>, kernels::dropout_norm_backward_cuda<In, Out>,
          call.operands<In, Out>(), elements<Out>(gradients.dx), shape);
    });
  }
  accumulate(call);
  return gradients;
}

at::Tensor Norm::forward(const at::Tensor& x) {
  NormSaved saved;
  at::Tensor out = apply(x, &saved);
  return attach(out, {x}, [this, saved](const at::Tensor& dy) -> Gradients { return {backward(dy, saved)}; });
}

void Norm::collect_params(std::vector<Param*>& params) {
  if (spec_.has_weight) params.push_back(&weight_);
  if (spec_.has_bias()) params.push_back(&bias_);
}

Input normalize(Norm& norm, const at::Tensor& x, const SavePolicy& saving) {
  NormSaved raw;
  at::Tensor out = norm.apply(x, &raw);
  if (!at::GradMode::is_enabled()) return out;
  const Saved saved_x = saving.keep(x);
  raw.x = at::Tensor();
  out = attach(out, {x}, [&norm, saved_x, raw](const at::Tensor& dy) -> Gradients {
    NormSaved whole = raw;
    whole.x = saved_x.get();
    return {norm.backward(dy, whole)};
  });
  if (!saving.recomputes(SavePoint::norm)) return out;
  return {out, Saved::recomputed([&norm, saved_x] { return norm.apply(saved_x.get(), nullptr); })};
}

}  // namespace metroplex::nn

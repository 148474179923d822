#include "nn/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "nn/autograd_node.h"
#include "comm/collectives.h"
#include "nn/matmul.h"
#include "nn/param_init.h"

namespace metroplex::nn {
namespace {

struct PendingTensor {
  at::Tensor tensor;
  comm::Handle handle;
  at::Tensor source;  // must live until completion
  at::Tensor wait() {
    handle.wait();
    return tensor;
  }
};

PendingTensor start_gather(const at::Tensor& x, const comm::Group& sp) {
  if (sp.size() == 1) return {x, {}, {}};
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] *= sp.size();
  PendingTensor pending{at::empty(sizes, x.options()), {}, x.contiguous()};
  pending.handle = comm::all_gather_into_async(pending.tensor, pending.source, sp);
  return pending;
}

// Reduces x over both groups, one of which has size one: a reduce-scatter over sp, or an all-reduce.
PendingTensor start_reduce(const at::Tensor& x, const comm::Group& sp, const comm::Group& tp_reduce) {
  if (sp.size() == 1) return {x, comm::all_reduce_async(x, tp_reduce), {}};
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] /= sp.size();
  PendingTensor pending{at::empty(sizes, x.options()), {}, x};
  pending.handle = comm::reduce_scatter_into_async(pending.tensor, pending.source, sp);
  return pending;
}

Saved save_if(bool needed, const SavePolicy& saving, const Input& in) { return needed ? saving.keep(in) : Saved(); }

struct AdaptersSaved {
  AdapterRows rows;
  std::vector<Saved> hidden;
};

AdapterSpec adapter_spec(const LinearSpec& spec, LinearSplit split) {
  return {spec.name, spec.in_features, spec.adapters, split};
}

std::shared_ptr<Param> make_shared_param(ParamSpec spec, const LayerContext& context) {
  return std::make_shared<Param>(make_param(std::move(spec), context));
}

topology::DimShard output_shard(const LinearSpec& spec, const comm::Group& tp) {
  if (!spec.gated) return topology::even_shard(0, topology::Axis::tp, spec.out_features, tp.size(), tp.index());
  const int64_t half = spec.out_features / 2;
  topology::DimShard dim_shard = topology::even_shard(0, topology::Axis::tp, half, tp.size(), tp.index());
  const topology::RowRange gate = dim_shard.ranges.front();
  dim_shard.ranges.push_back({gate.size, half + gate.global, gate.size});
  return dim_shard;
}

// Placement of <name>.weight [out, in] or <name>.bias [out], split over tp by output features.
topology::Placement output_placement(const LinearSpec& spec, const comm::Group& tp, topology::Role role) {
  const std::string name = spec.name + (role == topology::Role::bias ? ".bias." : ".weight.");
  topology::Placement placement{.cuts = {output_shard(spec, tp)}, .role = role, .regions = spec.regions};
  for (topology::Region& part : placement.regions) part.name.insert(0, name);
  return placement;
}

}  // namespace

void accumulate_weight_gradient(const device::Target& target, Param& weight, const at::Tensor& dy,
                                const at::Tensor& x) {
  weight.accumulate_or_write([target, dy, x](at::Tensor& main_grad, bool adds) {
    put_linear_weight_gradient(target, main_grad, dy, x, adds);
  });
}

void accumulate_bias_gradient(const device::Target& target, Param& bias, const at::Tensor& dy) {
  bias.accumulate_or_write(
      [target, dy](at::Tensor& main_grad, bool adds) { put_linear_bias_gradient(target, main_grad, dy, adds); });
}

ColumnParallelLinear::ColumnParallelLinear(const LinearSpec& spec, const LayerContext& context)
    : tp_(context.tp),
      sp_(context.sp),
      tp_reduce_(context.tp_reduce),
      target_(context.target),
      saving_(context.saving),
      skip_bias_add_(spec.skip_bias_add) {
  using topology::Role;
  weight_ = make_shared_param({spec.name + ".weight",
                               {spec.out_features, spec.in_features},
                               output_placement(spec, tp_, Role::weight),
                               spec.init},
                              context);
  if (spec.bias) {
    bias_ = make_shared_param(
        {spec.name + ".bias", {spec.out_features}, output_placement(spec, tp_, Role::bias), Init::zeros}, context);
  }
  adapters_ = Adapters(adapter_spec(spec, LinearSplit::output), context);
}

ColumnParallelLinear::ColumnParallelLinear(std::shared_ptr<Param> weight, const LayerContext& context)
    : tp_(context.tp),
      sp_(context.sp),
      tp_reduce_(context.tp_reduce),
      target_(context.target),
      saving_(context.saving),
      weight_(std::move(weight)) {}

AdapterRows ColumnParallelLinear::adapter_rows(const Input& in, const Microbatch& batch) const {
  std::vector<int64_t> whole = in.x.sizes().vec();
  whole[0] *= sp_.size();
  return adapters_.rows(whole, 0, batch);
}

at::Tensor ColumnParallelLinear::forward(const Input& in, const AdapterRows& rows) {
  at::Tensor out;
  std::vector<at::Tensor> hidden;
  const bool adds_bias = bias_ && !skip_bias_add_;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor whole = comm::all_gather(in.x, 0, sp_);
    out = linear_product(target_, whole, weight_->data.t(), adds_bias ? bias_->data : at::Tensor());
    hidden = adapters_.add_outputs(out, whole, rows);
  }
  if (!at::GradMode::is_enabled()) return out;
  const AdaptersSaved adapters_saved{rows, adapters_.keep(hidden)};
  const Saved saved = save_if(keeps_input(), saving_, in);
  return attach(out, {in.x}, [this, adds_bias, saved, adapters_saved](const at::Tensor& dy) -> Gradients {
    const at::NoGradGuard no_grad;
    const at::Tensor x = saved.get();
    PendingTensor input = x.defined() ? start_gather(x, sp_) : PendingTensor();
    at::Tensor dx = linear_product(target_, dy, weight_->data);
    const auto dhidden = adapters_.add_input_gradients(dx, dy, adapters_saved.rows);
    const at::Tensor whole = input.wait();
    PendingTensor reduced = start_reduce(dx, sp_, tp_reduce_);
    if (!weight_->frozen) accumulate_weight_gradient(target_, *weight_, dy, whole);
    if (adds_bias) accumulate_bias_gradient(target_, *bias_, dy);
    adapters_.accumulate({dy, whole, adapters_saved.hidden, dhidden}, adapters_saved.rows);
    return {reduced.wait()};
  });
}

void ColumnParallelLinear::collect_params(std::vector<Param*>& params) {
  params.push_back(weight_.get());
  if (bias_) params.push_back(bias_.get());
  adapters_.collect_params(params);
}

RowParallelLinear::RowParallelLinear(const LinearSpec& spec, const LayerContext& context)
    : tp_(context.tp),
      sp_(context.sp),
      tp_reduce_(context.tp_reduce),
      target_(context.target),
      saving_(context.saving),
      skip_bias_add_(spec.skip_bias_add) {
  using topology::Role;
  const topology::DimShard dim_shard =
      topology::even_shard(1, topology::Axis::tp, spec.in_features, tp_.size(), tp_.index());
  weight_ = make_shared_param(
      {spec.name + ".weight", {spec.out_features, spec.in_features}, {.cuts = {dim_shard}}, spec.init}, context);
  if (spec.bias) {
    bias_ = make_shared_param(
        {spec.name + ".bias", {spec.out_features}, {.partial = context.sp_axes, .role = Role::bias}, Init::zeros},
        context);
  }
  adapters_ = Adapters(adapter_spec(spec, LinearSplit::input), context);
}

AdapterRows RowParallelLinear::adapter_rows(const Input& in, const Microbatch& batch) const {
  return adapters_.rows(in.x.sizes(), 0, batch);
}

at::Tensor RowParallelLinear::forward(const Input& in, const AdapterRows& rows) {
  at::Tensor out;
  std::vector<at::Tensor> hidden;
  const bool adds_bias = bias_ && !skip_bias_add_;
  {
    const at::NoGradGuard no_grad;
    out = linear_product(target_, in.x, weight_->data.t());
    hidden = adapters_.add_outputs(out, in.x, rows);
    out = comm::reduce_scatter(out, 0, sp_);
    comm::all_reduce(out, tp_reduce_);
    if (adds_bias) out.add_(bias_->data);
  }
  if (!at::GradMode::is_enabled()) return out;
  const AdaptersSaved adapters_saved{rows, adapters_.keep(hidden)};
  const Saved saved = save_if(!weight_->frozen || adapters_.need_input(), saving_, in);
  return attach(out, {in.x}, [this, adds_bias, saved, adapters_saved](const at::Tensor& dy_local) -> Gradients {
    const at::NoGradGuard no_grad;
    const at::Tensor dy = comm::all_gather(dy_local, 0, sp_), x = saved.get();
    at::Tensor dx = linear_product(target_, dy, weight_->data);
    const auto dhidden = adapters_.add_input_gradients(dx, dy, adapters_saved.rows);
    if (!weight_->frozen) accumulate_weight_gradient(target_, *weight_, dy, x);
    if (adds_bias) accumulate_bias_gradient(target_, *bias_, dy_local);
    adapters_.accumulate({dy, x, adapters_saved.hidden, dhidden}, adapters_saved.rows);
    return {dx};
  });
}

void RowParallelLinear::collect_params(std::vector<Param*>& params) {
  params.push_back(weight_.get());
  if (bias_) params.push_back(bias_.get());
  adapters_.collect_params(params);
}

ReplicatedLinear::ReplicatedLinear(const LinearSpec& spec, const LayerContext& context)
    : sp_(context.sp),
      target_(context.target),
      saving_(context.saving),
      adapters_(adapter_spec(spec, LinearSplit::none), context) {
  using topology::Role;
  const std::vector<int64_t> sizes{spec.out_features, spec.in_features};
  weight_ = make_shared_param({spec.name + ".weight", sizes, {.partial = context.sp_axes}, spec.init}, context);
  if (!spec.bias) return;
  bias_ = make_shared_param(
      {spec.name + ".bias", {spec.out_features}, {.partial = context.sp_axes, .role = Role::bias}, Init::zeros},
      context);
}

AdapterRows ReplicatedLinear::adapter_rows(const Input& in, const Microbatch& batch) const {
  return adapters_.rows(in.x.sizes(), in.x.size(0) * sp_.index(), batch);
}

at::Tensor ReplicatedLinear::forward(const Input& in, const AdapterRows& rows) {
  at::Tensor out;
  std::vector<at::Tensor> hidden;
  {
    const at::NoGradGuard no_grad;
    out = linear_product(target_, in.x, weight_->data.t(), bias_ ? bias_->data : at::Tensor());
    hidden = adapters_.add_outputs(out, in.x, rows);
  }
  if (!at::GradMode::is_enabled()) return out;
  const AdaptersSaved adapters_saved{rows, adapters_.keep(hidden)};
  const Saved saved = save_if(!weight_->frozen || adapters_.need_input(), saving_, in);
  return attach(out, {in.x}, [this, saved, adapters_saved](const at::Tensor& dy) -> Gradients {
    const at::NoGradGuard no_grad;
    const at::Tensor x = saved.get();
    at::Tensor dx = linear_product(target_, dy, weight_->data);
    const auto dhidden = adapters_.add_input_gradients(dx, dy, adapters_saved.rows);
    if (!weight_->frozen) accumulate_weight_gradient(target_, *weight_, dy, x);
    if (bias_) accumulate_bias_gradient(target_, *bias_, dy);
    adapters_.accumulate({dy, x, adapters_saved.hidden, dhidden}, adapters_saved.rows);
    return {dx};
  });
}

void ReplicatedLinear::collect_params(std::vector<Param*>& params) {
  params.push_back(weight_.get());
  if (bias_) params.push_back(bias_.get());
  adapters_.collect_params(params);
}

}  // namespace metroplex::nn

#include "nn/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "comm/autograd_node.h"
#include "comm/collectives.h"
#include "nn/matmul.h"

namespace metroplex::nn {
namespace {

// A collective under way and the tensor it fills.
struct InFlight {
  at::Tensor tensor;
  comm::Handle handle;
  at::Tensor source;  // stays alive until the end
  at::Tensor wait() {
    handle.wait();
    return tensor;
  }
};

InFlight start_gather(const at::Tensor& x, const comm::Group& tp) {
  if (tp.size() == 1) return {x, {}, {}};
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] *= tp.size();
  InFlight flight{at::empty(sizes, x.options()), {}, x.contiguous()};
  flight.handle = comm::all_gather_into_async(flight.tensor, flight.source, tp);
  return flight;
}

InFlight start_reduce_scatter(const at::Tensor& x, const comm::Group& tp) {
  if (tp.size() == 1) return {x, {}, {}};
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] /= tp.size();
  InFlight flight{at::empty(sizes, x.options()), {}, x};
  flight.handle = comm::reduce_scatter_into_async(flight.tensor, flight.source, tp);
  return flight;
}

std::shared_ptr<Param> share(ParamSpec spec, const LayerContext& context) {
  return std::make_shared<Param>(make_param(std::move(spec), context));
}

Shard output_shard(const LinearSpec& spec, const comm::Group& tp) {
  if (!spec.gated) return even_shard(0, spec.out_features, tp.size(), tp.index());
  const int64_t half = spec.out_features / 2;
  Shard gate = even_shard(0, half, tp.size(), tp.index());
  const RowRange& g = gate.ranges.front();
  gate.ranges.push_back(RowRange{g.size, half + g.global, g.size});
  return gate;
}

}  // namespace

void accumulate_weight_gradient(const cuda::Target& target, Param& weight, const at::Tensor& dy,
                                const at::Tensor& x) {
  weight.accumulate([&](at::Tensor& main_grad) { add_linear_weight_gradient(target, main_grad, dy, x); });
}

void accumulate_bias_gradient(const cuda::Target& target, Param& bias, const at::Tensor& dy) {
  bias.accumulate([&](at::Tensor& main_grad) { add_linear_bias_gradient(target, main_grad, dy); });
}

ColumnParallelLinear::ColumnParallelLinear(const LinearSpec& spec, const LayerContext& context)
    : tp_(context.tp),
      target_(context.target),
      saving_(context.saving),
      sequence_parallel_(context.sequence_parallel),
      gather_output_(spec.gather_output),
      skip_bias_add_(spec.skip_bias_add) {
  MPX_ASSERT(!(spec.gather_output && spec.gated), "a gathered gated output would interleave gate and up");
  const Shard shard = output_shard(spec, tp_);
  weight_ = share({spec.name + ".weight", {spec.out_features, spec.in_features}, shard, spec.init, 0}, context);
  if (spec.bias) bias_ = share({spec.name + ".bias", {spec.out_features}, shard, Init::zeros, 0}, context);
}

ColumnParallelLinear::ColumnParallelLinear(std::shared_ptr<Param> weight, const LayerContext& context)
    : tp_(context.tp),
      target_(context.target),
      saving_(context.saving),
      sequence_parallel_(context.sequence_parallel),
      weight_(std::move(weight)) {}

at::Tensor ColumnParallelLinear::forward(const Input& in) {
  at::Tensor out;
  const bool adds_bias = bias_ && !skip_bias_add_;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor whole = sequence_parallel_ ? comm::all_gather(in.x, 0, tp_) : in.x;
    out = linear_product(target_, whole, weight_->data, adds_bias ? bias_->data : at::Tensor());
    if (gather_output_) out = comm::all_gather(out, -1, tp_);
  }
  if (!at::GradMode::is_enabled()) return out;
  return comm::attach(
      out, {in.x}, [this, adds_bias, saved = saving_.keep(in)](const at::Tensor& dy_whole) -> comm::Gradients {
        const at::NoGradGuard no_grad;
        const at::Tensor x = saved.get();
        InFlight input = sequence_parallel_ ? start_gather(x, tp_) : InFlight{x, {}, {}};
        const at::Tensor dy = gather_output_ ? comm::own_slice(dy_whole, -1, tp_) : dy_whole;
        at::Tensor dx = linear_input_gradient(target_, dy, weight_->data);
        const at::Tensor whole = input.wait();
        InFlight reduced =
            sequence_parallel_ ? start_reduce_scatter(dx, tp_) : InFlight{dx, comm::all_reduce_async(dx, tp_), {}};
        accumulate_weight_gradient(target_, *weight_, dy, whole);
        if (adds_bias) accumulate_bias_gradient(target_, *bias_, dy);
        return {reduced.wait()};
      });
}

void ColumnParallelLinear::collect_params(std::vector<Param*>& params) {
  params.push_back(weight_.get());
  if (bias_) params.push_back(bias_.get());
}

RowParallelLinear::RowParallelLinear(const LinearSpec& spec, const LayerContext& context)
    : tp_(context.tp),
      target_(context.target),
      saving_(context.saving),
      sequence_parallel_(context.sequence_parallel),
      input_is_parallel_(spec.input_is_parallel),
      skip_bias_add_(spec.skip_bias_add) {
  MPX_CHECK(input_is_parallel_ || !sequence_parallel_, "nn", spec.name,
            ": with sequence parallelism the input of a row-parallel layer must be split already");
  const Shard shard = even_shard(1, spec.in_features, tp_.size(), tp_.index());
  weight_ = share({spec.name + ".weight", {spec.out_features, spec.in_features}, shard, spec.init, 0}, context);
  if (spec.bias) {
    bias_ = share({spec.name + ".bias", {spec.out_features}, {}, Init::zeros, 0}, context);
    bias_->partial_grad_over_tp = sequence_parallel_;
  }
}

at::Tensor RowParallelLinear::forward(const Input& in) {
  MPX_ASSERT(input_is_parallel_ || !in.again.defined(), weight_->name, ": an input that is split here is kept");
  at::Tensor out, part;
  const bool adds_bias = bias_ && !skip_bias_add_;
  {
    const at::NoGradGuard no_grad;
    part = input_is_parallel_ ? in.x : comm::own_slice(in.x, -1, tp_);
    out = linear_product(target_, part, weight_->data);
    if (sequence_parallel_) {
      out = comm::reduce_scatter(out, 0, tp_);
    } else {
      comm::all_reduce(out, tp_);
    }
    if (adds_bias) out.add_(bias_->data);
  }
  if (!at::GradMode::is_enabled()) return out;
  const Saved saved = saving_.keep(Input{part, in.again});
  return comm::attach(out, {in.x}, [this, adds_bias, saved](const at::Tensor& dy_local) -> comm::Gradients {
    const at::NoGradGuard no_grad;
    const at::Tensor dy = sequence_parallel_ ? comm::all_gather(dy_local, 0, tp_) : dy_local;
    at::Tensor dx = linear_input_gradient(target_, dy, weight_->data);
    accumulate_weight_gradient(target_, *weight_, dy, saved.get());
    if (adds_bias) accumulate_bias_gradient(target_, *bias_, dy_local);
    return {input_is_parallel_ ? dx : comm::all_gather(dx, -1, tp_)};
  });
}

void RowParallelLinear::collect_params(std::vector<Param*>& params) {
  params.push_back(weight_.get());
  if (bias_) params.push_back(bias_.get());
}

}  // namespace metroplex::nn

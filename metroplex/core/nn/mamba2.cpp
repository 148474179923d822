#include "nn/mamba2.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

#include "base/error.h"
#include "config/layer_parts.h"
#include "nn/autograd_node.h"
#include "nn/kv_cache.h"
#include "nn/param_init.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

// Widths of one of `ranks` ranks.
struct Widths {
  int64_t heads, inner, states;  // states: of B, and of C
  explicit Widths(const config::Model& model, int64_t ranks = 1)
      : heads(config::mamba_heads(model) / ranks),
        inner(heads * model.mamba_head_dim),
        states(model.mamba_num_groups / ranks * model.mamba_state_dim) {}
};

LinearSpec input_projection(const AttentionSpec& spec, const config::Model& model) {
  const Widths widths(model);
  LinearSpec out = linear_spec(spec.name + ".in_proj", model.hidden_size,
                               2 * widths.inner + 2 * widths.states + widths.heads, model.mamba_proj_bias);
  for (const auto& [name, rows] : {std::pair{"z", widths.inner},
                                   {"x", widths.inner},
                                   {"B", widths.states},
                                   {"C", widths.states},
                                   {"dt", widths.heads}}) {
    const int64_t begin = out.regions.empty() ? 0 : out.regions.back().begin + out.regions.back().size;
    out.regions.push_back({name, 0, begin, rows});
    out.sections.push_back(rows);
  }
  return out;
}

LinearSpec output_projection_of_mamba(const AttentionSpec& spec, const config::Model& model) {
  LinearSpec out =
      linear_spec(spec.name + ".out_proj", Widths(model).inner, model.hidden_size, model.mamba_proj_bias);
  out.skip_bias_add = !model.needs_whole_sum();
  out.init = Init::scaled_normal;
  return out;
}

// Returns the widths of x, B, C and dt.
std::vector<int64_t> sections_of_rank(const config::Model& model, int64_t tp) {
  const Widths widths(model, tp);
  return {widths.inner, widths.states, widths.states, widths.heads};
}

ShortConvolutionSpec convolution_spec(const AttentionSpec& spec, const config::Model& model) {
  const Widths widths(model);
  return {.name = spec.name + ".conv1d",
          .regions = {{"x", widths.inner}, {"B", widths.states}, {"C", widths.states}},
          .kernel = model.mamba_conv_kernel_dim,
          .bias = model.mamba_conv_bias};
}

}  // namespace

Mamba2::Mamba2(const AttentionSpec& spec, const config::Model& model, const LayerContext& context)
    : layer_(spec.layer),
      inner_(Widths(model, context.tp.size()).inner),
      head_dim_(model.mamba_head_dim),
      state_dim_(model.mamba_state_dim),
      heads_(Widths(model, context.tp.size() * context.cp.size()).heads),
      groups_(model.mamba_num_groups / (context.tp.size() * context.cp.size())),
      dt_min_(model.mamba_dt_min),
      dt_max_(model.mamba_dt_max > 0 ? model.mamba_dt_max : std::numeric_limits<double>::infinity()),
      chunk_(model.mamba_chunk_size),
      saving_(context.saving),
      inputs_(sections_of_rank(model, context.tp.size()), context.cp),
      results_({inner_}, context.cp),
      per_head_({Widths(model, context.tp.size()).heads}, context.cp),
      in_proj_(input_projection(spec, model), LinearSplit::output, context),
      convolution_(convolution_spec(spec, model), context),
      dt_bias_(make_head_param(spec.name + ".dt_bias", Widths(model).heads, Init::time_step, context)),
      a_log_(make_head_param(spec.name + ".A_log", Widths(model).heads, Init::log_uniform, context)),
      d_(make_head_param(spec.name + ".D", Widths(model).heads, Init::ones, context)),
      norm_({.name = spec.name + ".norm",
             .width = Widths(model).inner,
             .groups = model.mamba_num_groups / context.tp.size(),
             .epsilon = model.layernorm_epsilon},
            context),
      out_proj_(output_projection_of_mamba(spec, model), LinearSplit::input, context) {}

Mamba2::Projected Mamba2::split(const at::Tensor& fused) const {
  return {fused.narrow(2, 0, inner_), fused.narrow(2, inner_, fused.size(2) - inner_)};
}

// The whole sequence, for this rank's heads.
struct Mamba2::Convolved {
  at::Tensor xbc;         // before the convolution
  StateSpaceInputs in;    // in at least fp32
  at::Tensor raw_dt, dt;  // before softplus; before the limits
  at::Tensor d;
};

Mamba2::Convolved Mamba2::convolve(const at::Tensor& rest, const Microbatch& batch, at::Tensor* cached) const {
  const int64_t inner = heads_ * head_dim_, states = groups_ * state_dim_;
  const at::Tensor rows = inputs_.to_sequence(rest, batch);
  Convolved out;
  out.in.documents = row_documents(batch, rows.size(0));
  out.xbc = rows.narrow(2, 0, inner + 2 * states);
  const at::Tensor convolved = to_wide(convolution_.apply(out.xbc, batch.documents.ids, cached));
  out.raw_dt = to_wide(rows.narrow(2, inner + 2 * states, heads_)) + to_wide(per_head_.share(dt_bias_.data));
  out.dt = at::softplus(out.raw_dt);
  out.d = to_wide(per_head_.share(d_.data)).unsqueeze(1);
  out.in.x = convolved.narrow(2, 0, inner).unflatten(2, {heads_, head_dim_});
  out.in.dt = at::clamp(out.dt, dt_min_, dt_max_);
  out.in.a = -at::exp(to_wide(per_head_.share(a_log_.data)));
  out.in.b = convolved.narrow(2, inner, states).unflatten(2, {groups_, state_dim_});
  out.in.c = convolved.narrow(2, inner + states, states).unflatten(2, {groups_, state_dim_});
  return out;
}

at::Tensor Mamba2::run(const at::Tensor& fused, const Microbatch& batch) {
  at::Tensor y, out;
  {
    const at::NoGradGuard no_grad;
    const Projected projected = split(fused.detach());
    KvCache::Recurrent* const cache = batch.cache != nullptr ? &batch.cache->recurrent[layer_] : nullptr;
    const Convolved convolved = convolve(projected.rest, batch, cache != nullptr ? &cache->inputs : nullptr);
    y = apply_state_space(convolved.in, chunk_, cache);
    y = at::addcmul(y, convolved.in.x, convolved.d).flatten(2).to(fused.scalar_type());
    y = results_.to_rows(y, batch);
    out = norm_.apply(y, projected.z);
  }
  if (!at::GradMode::is_enabled()) return out;
  const Saved saved = saving_.keep(fused), saved_y = saving_.keep(y);
  return attach(out, {fused}, [this, saved, saved_y, batch](const at::Tensor& dout) -> Gradients {
    return {run_backward(dout, saved.get(), saved_y.get(), batch)};
  });
}

at::Tensor Mamba2::run_backward(const at::Tensor& dout, const at::Tensor& fused, const at::Tensor& y,
                                const Microbatch& batch) {
  const at::NoGradGuard no_grad;
  const at::ScalarType type = fused.scalar_type();
  const Projected projected = split(fused);
  const GatedNorm::Gradients of_norm = norm_.backward(dout, y, projected.z);
  const Convolved convolved = convolve(projected.rest, batch, nullptr);
  const at::Tensor dy = to_wide(results_.to_sequence(of_norm.y.to(type), batch)).unflatten(2, {heads_, head_dim_});
  const StateSpaceGradients gradients = chunked_state_space_backward(dy, convolved.in, chunk_);
  per_head_.accumulate(d_, (dy * convolved.in.x).sum(at::IntArrayRef({0, 1, 3})));
  per_head_.accumulate(a_log_, gradients.a * convolved.in.a);
  const at::Tensor inside = at::bitwise_and(at::ge(convolved.dt, dt_min_), at::le(convolved.dt, dt_max_));
  const at::Tensor draw_dt = at::softplus_backward(gradients.dt * inside, convolved.raw_dt, 1, 20);
  per_head_.accumulate(dt_bias_, draw_dt.sum(at::IntArrayRef({0, 1})));
  const at::Tensor dx = at::addcmul(gradients.x, dy, convolved.d);
  const at::Tensor dxbc =
      convolution_.backward(at::cat({dx.flatten(2), gradients.b.flatten(2), gradients.c.flatten(2)}, 2),
                            convolved.xbc, batch.documents.ids);
  const at::Tensor drest = inputs_.to_rows(at::cat({dxbc.to(type), draw_dt.to(type)}, 2), batch);
  return at::cat({of_norm.gate.to(type), drest}, 2);
}

at::Tensor Mamba2::forward(const Input& in, const Microbatch& batch, const at::Tensor& query_sbh) {
  MPX_ASSERT(!query_sbh.defined(), "Mamba-2 has no external queries");
  return out_proj_.forward(run(in_proj_.forward(in, batch), batch), batch);
}

void Mamba2::collect_params(std::vector<Param*>& params) {
  in_proj_.collect_params(params);
  convolution_.collect_params(params);
  for (Param* const param : {&dt_bias_, &a_log_, &d_}) params.push_back(param);
  norm_.collect_params(params);
  out_proj_.collect_params(params);
}

}  // namespace metroplex::nn

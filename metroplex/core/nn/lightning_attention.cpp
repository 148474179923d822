#include "nn/lightning_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "config/lightning.h"
#include "nn/autograd_node.h"
#include "nn/kv_cache.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

constexpr double kOutNormEpsilon = 1e-6;  // as in transformers, regardless of model.layernorm_epsilon

// Channels of all heads of one of `tp` ranks.
int64_t width(const config::Model& model, int64_t tp) {
  const HeadCounts whole = head_counts(model, 1);
  return whole.heads / tp * whole.head_dim;
}

LinearSpec in_projection(const AttentionSpec& spec, const config::Model& model) {
  const int64_t all = width(model, 1);
  LinearSpec out = linear_spec(spec.name + ".in_proj", model.hidden_size, 4 * all, /*bias=*/false);
  out.sections = {3 * all, all};
  out.regions = {{"qkv", 0, 0, 3 * all}, {"gate", 0, 3 * all, all}};
  return out;
}

LinearSpec out_projection(const AttentionSpec& spec, const config::Model& model) {
  LinearSpec out = linear_spec(spec.name + ".out_proj", width(model, 1), model.hidden_size, /*bias=*/false);
  out.init = Init::scaled_normal;
  return out;
}

NormSpec norm_over_heads(const AttentionSpec& spec, const config::Model& model, const LayerContext& context) {
  NormSpec norm{spec.name + ".out_norm", width(model, context.tp.size()), /*rms=*/true, kOutNormEpsilon};
  norm.columns = context.tp;
  return norm;
}

at::Tensor make_log_decays(const AttentionSpec& spec, const config::Model& model, const LayerContext& context) {
  const int64_t heads = model.num_attention_heads / context.tp.size();
  const config::LightningDecay decay(model, spec.layer);
  std::vector<double> values;
  for (int64_t head = 0; head < heads; ++head) values.push_back(-decay.slope(context.tp.index() * heads + head));
  const at::Tensor all = at::tensor(values, at::TensorOptions().dtype(acc_type(context.dtype)));
  return comm::select_shard(all, 0, context.cp).to(context.target.memory());
}

}  // namespace

// The whole sequence, for this rank's heads.
struct LightningAttention::Mixed {
  at::Tensor raw;       // before silu: [s, b, heads, 3, d], in at least fp32
  StateSpaceInputs in;  // x = v, b = k, c = q
};

LightningAttention::LightningAttention(const AttentionSpec& spec, const config::Model& model,
                                       const LayerContext& context)
    : spec_(spec),
      head_dim_(head_counts(model, 1).head_dim),
      width_(width(model, context.tp.size())),
      heads_(width_ / head_dim_ / context.cp.size()),
      chunk_(model.lightning_chunk_size),
      saving_(context.saving),
      inputs_({3 * width_}, context.cp),
      results_({width_}, context.cp),
      log_decays_(make_log_decays(spec, model, context)),
      in_proj_(in_projection(spec, model), LinearSplit::output, context),
      out_norm_(norm_over_heads(spec, model, context), context),
      out_proj_(out_projection(spec, model), LinearSplit::input, context) {}

LightningAttention::Mixed LightningAttention::mix(const at::Tensor& projected, const Microbatch& batch) const {
  const at::Tensor rows = inputs_.to_sequence(projected.narrow(2, 0, 3 * width_), batch);
  Mixed mixed;
  mixed.raw = to_wide(rows).unflatten(2, {heads_, 3, head_dim_});
  const at::Tensor qkv = at::silu(mixed.raw);
  mixed.in.c = qkv.select(3, 0), mixed.in.b = qkv.select(3, 1), mixed.in.x = qkv.select(3, 2);
  mixed.in.dt = at::ones({rows.size(0), rows.size(1), heads_}, qkv.options());
  mixed.in.a = log_decays_;
  mixed.in.documents = row_documents(batch, rows.size(0));
  return mixed;
}

at::Tensor LightningAttention::gates(const at::Tensor& projected) const {
  return to_wide(projected.narrow(2, 3 * width_, width_)).sigmoid();
}

at::Tensor LightningAttention::run_core(const at::Tensor& projected, const Microbatch& batch) const {
  KvCache::Recurrent* const cache = batch.cache != nullptr ? &batch.cache->recurrent[spec_.layer] : nullptr;
  const at::Tensor y = apply_state_space(mix(projected, batch).in, chunk_, cache);
  return results_.to_rows(y.flatten(2).to(projected.scalar_type()), batch);
}

at::Tensor LightningAttention::apply_norm_and_gates(const at::Tensor& y, const at::Tensor& projected) const {
  return at::mul(to_wide(out_norm_.apply(y, nullptr)), gates(projected)).to(projected.scalar_type());
}

at::Tensor LightningAttention::backward(const at::Tensor& dout, const at::Tensor& projected, const at::Tensor& y,
                                        const Microbatch& batch) {
  const at::NoGradGuard no_grad;
  const at::ScalarType type = projected.scalar_type();
  NormSaved saved;
  const at::Tensor normed = to_wide(out_norm_.apply(y, &saved)), gate = gates(projected), wide = to_wide(dout);
  const at::Tensor dgate = at::sigmoid_backward(at::mul(wide, normed), gate),
                   drows = out_norm_.backward(at::mul(wide, gate), saved);
  const at::Tensor dy = to_wide(results_.to_sequence(drows, batch)).unflatten(2, {heads_, head_dim_});
  const Mixed mixed = mix(projected, batch);
  const StateSpaceGradients gradients = chunked_state_space_backward(dy, mixed.in, chunk_);
  const at::Tensor dqkv = at::silu_backward(at::stack({gradients.c, gradients.b, gradients.x}, 3), mixed.raw);
  return at::cat({inputs_.to_rows(dqkv.flatten(2).to(type), batch), dgate.to(type)}, 2);
}

// The result is computed again from the core's result, so that out_proj does not save it.
Input LightningAttention::run(const at::Tensor& projected, const Microbatch& batch) {
  at::Tensor y, out;
  {
    const at::NoGradGuard no_grad;
    y = run_core(projected.detach(), batch);
    out = apply_norm_and_gates(y, projected.detach());
  }
  if (!at::GradMode::is_enabled()) return out;
  const Saved saved = saving_.keep(projected);
  const Saved saved_y = saving_.recomputes(SavePoint::core_attn)
                            ? Saved::recomputed([this, saved, batch] { return run_core(saved.get(), batch); })
                            : saving_.keep(y);
  out = attach(out, {projected}, [this, saved, saved_y, batch](const at::Tensor& dout) -> Gradients {
    return {backward(dout, saved.get(), saved_y.get(), batch)};
  });
  return {out,
          Saved::recomputed([this, saved, saved_y] { return apply_norm_and_gates(saved_y.get(), saved.get()); })};
}

at::Tensor LightningAttention::forward(const Input& in, const Microbatch& batch, const at::Tensor& query_sbh) {
  MPX_ASSERT(!query_sbh.defined(), spec_.name, ": linear attention has no external queries");
  return out_proj_.forward(run(in_proj_.forward(in, batch), batch), batch);
}

void LightningAttention::collect_params(std::vector<Param*>& params) {
  in_proj_.collect_params(params);
  out_norm_.collect_params(params);
  out_proj_.collect_params(params);
}

}  // namespace metroplex::nn

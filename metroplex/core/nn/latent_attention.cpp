#include "nn/latent_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "comm/collectives.h"
#include "nn/autograd_node.h"
#include "nn/kv_cache.h"

namespace metroplex::nn {
namespace {

// The whole output may have one adapter; `word` is Hugging Face's name of the layer.
LinearSpec latent_linear(const std::string& name, const char* word, int64_t in, int64_t out, bool bias) {
  LinearSpec spec = linear_spec(name, in, out, bias);
  spec.adapters = {config::whole_layer(word, out)};
  return spec;
}

LinearSpec query_spec(const AttentionSpec& spec, const config::Model& m) {
  const int64_t out = m.num_attention_heads * (m.qk_head_dim + m.qk_pos_emb_head_dim);
  if (m.q_lora_rank > 0) return latent_linear(spec.name + ".linear_q_up_proj", "q_b_proj", m.q_lora_rank, out, false);
  return latent_linear(spec.name + ".linear_q_proj", "q_proj", m.hidden_size, out, false);
}

CoreSpec latent_core_spec(const AttentionSpec& spec, const config::Model& model, const LayerContext& context) {
  CoreSpec core = core_spec(spec, model, context);
  const double mscale = yarn_mscale(model.rotary_scaling_factor, model.mscale_all_dim);
  core.softmax_scale *= mscale * mscale;
  return core;
}

}  // namespace

struct LatentAttention::Projections {
  at::Tensor q;          // [s, b, n (d + p)]
  at::Tensor kv;         // [s, b, n (d + dv)]
  at::Tensor k_rotated;  // [s, b, p], before rotation
};

LatentAttention::LatentAttention(const AttentionSpec& spec, const config::Model& model, const LayerContext& context,
                                 std::shared_ptr<RopeTable> rope)
    : spec_(spec),
      plain_dim_(model.qk_head_dim),
      rotated_dim_(model.qk_pos_emb_head_dim),
      v_dim_(model.v_head_dim),
      latent_dim_(model.kv_lora_rank),
      heads_(head_counts(model, context.tp.size()).heads),
      sp_(context.sp),
      tp_reduce_(context.tp_reduce),
      saving_(context.saving),
      rope_(std::move(rope)),
      q_(query_spec(spec, model), LinearSplit::output, context),
      kv_down_(latent_linear(spec.name + ".linear_kv_down_proj", "kv_a_proj_with_mqa", model.hidden_size,
                             latent_dim_ + rotated_dim_, model.add_qkv_bias),
               LinearSplit::none, context),
      kv_up_(latent_linear(spec.name + ".linear_kv_up_proj", "kv_b_proj", latent_dim_,
                           model.num_attention_heads * (plain_dim_ + v_dim_), false),
             LinearSplit::output, context),
      sinks_(make_sinks(spec, model, context)),
      core_(latent_core_spec(spec, model, context), context.saving, sinks_),
      proj_(output_projection(spec, model), LinearSplit::input, context) {
  MPX_ASSERT(!spec.has_external_query, spec.name, ": queries of latent attention come from its own input");
  const auto norm = [&](const char* name, int64_t width) {
    const double own = model.latent_layernorm_epsilon;
    return NormSpec{spec.name + name,
                    width,
                    model.normalization == config::Normalization::RMSNorm,
                    own > 0 ? own : model.layernorm_epsilon,
                    context.sp_axes,
                    topology::Role::norm,
                    model.apply_layernorm_1p};
  };
  if (model.q_lora_rank > 0) {
    q_down_.emplace(latent_linear(spec.name + ".linear_q_down_proj", "q_a_proj", model.hidden_size, model.q_lora_rank,
                                  model.add_qkv_bias),
                    LinearSplit::none, context);
  }
  if (!model.qk_layernorm) return;
  if (q_down_) q_norm_.emplace(norm(".q_layernorm", model.q_lora_rank), context);
  kv_norm_.emplace(norm(".kv_layernorm", latent_dim_), context);
}

// Gathers the rows that all heads of every rank read; the gradient is summed over all heads.
at::Tensor LatentAttention::gather_for_heads(const at::Tensor& shared) const {
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = comm::all_gather(shared.detach().contiguous(), 0, sp_);
  }
  return attach(out, {shared}, [this](const at::Tensor& dy) -> Gradients {
    const at::NoGradGuard no_grad;
    at::Tensor dx = comm::reduce_scatter(dy, 0, sp_);
    comm::all_reduce(dx, tp_reduce_);
    return {dx};
  });
}

// Overwrites q with its rotated parts.
CoreInputs LatentAttention::heads(const Projections& in, const Positions& rows) const {
  const int64_t s = in.q.size(0), b = in.q.size(1);
  const at::Tensor q = in.q.detach().view({s, b, heads_, plain_dim_ + rotated_dim_});
  rope_->rotate(q.narrow(3, plain_dim_, rotated_dim_), rows, 1);
  const at::Tensor shared = in.k_rotated.detach().clone(at::MemoryFormat::Contiguous).unsqueeze(2);
  rope_->rotate(shared, rows, 1);
  const at::Tensor kv = in.kv.detach().view({s, b, heads_, plain_dim_ + v_dim_});
  const at::Tensor k = at::empty(q.sizes(), q.options());
  k.narrow(3, 0, plain_dim_).copy_(kv.narrow(3, 0, plain_dim_));
  k.narrow(3, plain_dim_, rotated_dim_).copy_(shared.expand({s, b, heads_, rotated_dim_}));
  return {q, k, kv.narrow(3, plain_dim_, v_dim_).contiguous()};
}

// Makes the heads again in backward; empty unless the policy recomputes them.
std::function<CoreInputs()> LatentAttention::recomputed_heads(const Input& q_in, const Input& kv_in,
                                                              const at::Tensor& k_rotated, const Microbatch& batch) {
  if (!at::GradMode::is_enabled() || !saving_.recomputes(SavePoint::latent_heads)) return {};
  return [this, q = saving_.keep(q_in), kv = saving_.keep(kv_in), shared = saving_.keep(k_rotated), batch] {
    const Projections again{q_.forward(q.get(), batch), kv_up_.forward(kv.get(), batch), shared.get()};
    return heads(again, sequence_positions(batch));
  };
}

namespace {

// Queries, keys and values that backward makes by one call of `again`; saved as usual if it is empty.
std::array<Input, 3> with_recomputation(const CoreInputs& in, const std::function<CoreInputs()>& again) {
  if (!again) return {in.q, in.k, in.v};
  const auto made = std::make_shared<CoreInputs>();
  const auto part = [&](at::Tensor CoreInputs::*member) {
    return Saved::recomputed([made, again, member] {
      if (!made->q.defined()) *made = again();
      return (*made).*member;
    });
  };
  return {Input(in.q, part(&CoreInputs::q)), Input(in.k, part(&CoreInputs::k)), Input(in.v, part(&CoreInputs::v))};
}

}  // namespace

Input LatentAttention::run_core(const Projections& in, const std::function<CoreInputs()>& again,
                                const Microbatch& batch) {
  const auto saved = at::GradMode::is_enabled() ? std::make_shared<CoreSaved>() : nullptr;
  Input out = [&] {
    const at::NoGradGuard no_grad;
    const Positions rows = sequence_positions(batch);
    const auto [q, k, v] = with_recomputation(heads(in, rows), again);
    if (batch.cache == nullptr) return core_.forward(q, k, v, {rows, rows}, batch, saved.get());
    const KvCache::Layer all = batch.cache->append(spec_.layer, k.x, v.x);
    return core_.forward(q, all.k, all.v, {rows, {}}, batch, saved.get());
  }();
  if (!saved) return out;
  out.x = attach(out.x, {in.q, in.kv, in.k_rotated},
                 [this, saved](const at::Tensor& dout) -> Gradients { return run_core_backward(dout, *saved); });
  return out;
}

std::vector<at::Tensor> LatentAttention::run_core_backward(const at::Tensor& dout, const CoreSaved& saved) {
  const at::NoGradGuard no_grad;
  const CoreInputs gradients = core_.backward(dout, saved);
  const Positions& rows = saved.positions.queries;
  const int64_t s = gradients.q.size(0), b = gradients.q.size(1);
  rope_->rotate(gradients.q.narrow(3, plain_dim_, rotated_dim_), rows, -1);
  const at::Tensor dshared = gradients.k.narrow(3, plain_dim_, rotated_dim_).sum(2, true);
  rope_->rotate(dshared, rows, -1);
  const at::Tensor dkv = at::empty({s, b, heads_, plain_dim_ + v_dim_}, gradients.k.options());
  dkv.narrow(3, 0, plain_dim_).copy_(gradients.k.narrow(3, 0, plain_dim_));
  dkv.narrow(3, plain_dim_, v_dim_).copy_(gradients.v);
  return {gradients.q.reshape({s, b, -1}), dkv.view({s, b, -1}), dshared.squeeze(2)};
}

at::Tensor LatentAttention::forward(const Input& in, const Microbatch& batch, const at::Tensor& query_sbh) {
  MPX_ASSERT(!query_sbh.defined(), spec_.name, ": the source of the queries differs from the spec");
  const auto normed = [&](std::optional<Norm>& norm, const at::Tensor& x) {
    return norm ? normalize(*norm, x, saving_) : Input(x);
  };
  const Input q_in = q_down_ ? normed(q_norm_, q_down_->forward(in, batch)) : in;
  const at::Tensor q = q_.forward(q_in, batch), down = kv_down_.forward(in, batch);
  const Input kv_in = normed(kv_norm_, down.narrow(2, 0, latent_dim_));
  const Projections projections{q, kv_up_.forward(kv_in, batch),
                                gather_for_heads(down.narrow(2, latent_dim_, rotated_dim_))};
  return proj_.forward(run_core(projections, recomputed_heads(q_in, kv_in, projections.k_rotated, batch), batch),
                       batch);
}

void LatentAttention::collect_params(std::vector<Param*>& params) {
  if (q_down_) q_down_->collect_params(params);
  if (q_norm_) q_norm_->collect_params(params);
  q_.collect_params(params);
  kv_down_.collect_params(params);
  if (kv_norm_) kv_norm_->collect_params(params);
  kv_up_.collect_params(params);
  if (sinks_) params.push_back(sinks_.get());
  proj_.collect_params(params);
}

}  // namespace metroplex::nn

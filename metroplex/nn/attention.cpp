#include "nn/attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "comm/autograd_node.h"

namespace metroplex::nn {
namespace {

LinearSpec linear(const std::string& name, int64_t in, int64_t out, bool bias) {
  LinearSpec spec;
  spec.name = name;
  spec.in_features = in;
  spec.out_features = out;
  spec.bias = bias;
  return spec;
}

LinearSpec fused_spec(const AttentionSpec& spec, const config::Model& model) {
  const HeadLayout whole = head_layout(model, 1);
  const int64_t queries = spec.query_from_outside ? 0 : whole.heads;
  return linear(spec.name + (spec.query_from_outside ? ".linear_kv" : ".linear_qkv"), model.hidden_size,
                (queries + 2 * whole.groups) * whole.head_dim, model.add_bias_linear || model.add_qkv_bias);
}

LinearSpec projection(const AttentionSpec& spec, const config::Model& model) {
  const HeadLayout whole = head_layout(model, 1);
  LinearSpec out =
      linear(spec.name + ".linear_proj", whole.heads * whole.head_dim, model.hidden_size, model.add_bias_linear);
  out.skip_bias_add = true;
  out.init = Init::scaled_normal;
  return out;
}

}  // namespace

HeadLayout head_layout(const config::Model& model, int tp) {
  const int64_t heads = model.num_attention_heads,
                groups = model.num_query_groups > 0 ? model.num_query_groups : heads;
  MPX_CHECK(heads % groups == 0 && groups % tp == 0, "nn", "num_query_groups = ", groups,
            " must divide num_attention_heads = ", heads, " and be a multiple of tensor parallel size ", tp);
  return {heads / tp, groups / tp, model.kv_channels > 0 ? model.kv_channels : model.hidden_size / heads};
}

// What the closure of the core needs beside the microbatch.
struct SelfAttention::Saved {
  CoreSpec spec;
  CoreSaved core;
  NormSaved q_norm, k_norm;
  int64_t first_position = 0;
};

SelfAttention::SelfAttention(const AttentionSpec& spec, const config::Model& model, const LayerContext& context,
                             std::shared_ptr<RopeTable> rope)
    : spec_(spec),
      layout_(head_layout(model, context.tp.size())),
      dropout_{context.seed, spec.layer, DropoutSite::attention_probabilities, model.attention_dropout},
      first_head_(layout_.heads * context.tp.index()),
      rope_(std::move(rope)),
      fused_(fused_spec(spec, model), context),
      proj_(projection(spec, model), context) {
  if (spec.query_from_outside) {
    const HeadLayout whole = head_layout(model, 1);
    q_.emplace(linear(spec.name + ".linear_q", model.hidden_size, whole.heads * whole.head_dim,
                      model.add_bias_linear || model.add_qkv_bias),
               context);
  }
  if (model.qk_layernorm) {
    const bool rms = model.normalization == "RMSNorm";
    q_norm_.emplace(NormSpec{spec.name + ".q_layernorm", layout_.head_dim, rms, model.layernorm_epsilon, true},
                    context);
    k_norm_.emplace(NormSpec{spec.name + ".k_layernorm", layout_.head_dim, rms, model.layernorm_epsilon, true},
                    context);
  }
}

// Views into the fused tensor; queries of several heads a group lie apart and are copied.
CoreInputs SelfAttention::split(const at::Tensor& fused, const at::Tensor& query) const {
  const int64_t s = fused.size(0), b = fused.size(1), d = layout_.head_dim,
                per_group = layout_.heads / layout_.groups;
  const int64_t leading = query.defined() ? 0 : per_group;
  const at::Tensor grouped = fused.view({s, b, layout_.groups, leading + 2, d});
  const at::Tensor q = query.defined() ? query.view({s, b, layout_.heads, d})
                                       : grouped.narrow(3, 0, per_group).reshape({s, b, layout_.heads, d});
  return {q, grouped.select(3, leading), grouped.select(3, leading + 1)};
}

void SelfAttention::append_to_cache(CoreInputs& in, KvCache& cache) const {
  const int64_t s = in.k.size(0), needed = cache.length + s;
  KvCache::Layer& layer = cache.layers[spec_.layer];
  if (!layer.k.defined() || layer.k.size(0) < needed) {
    std::vector<int64_t> sizes = in.k.sizes().vec();
    sizes[0] = std::max<int64_t>(needed, 2 * cache.length);
    for (at::Tensor* stored : {&layer.k, &layer.v}) {
      at::Tensor larger = at::empty(sizes, in.k.options());
      if (cache.length > 0) larger.narrow(0, 0, cache.length).copy_(stored->narrow(0, 0, cache.length));
      *stored = larger;
    }
  }
  layer.k.narrow(0, cache.length, s).copy_(in.k);
  layer.v.narrow(0, cache.length, s).copy_(in.v);
  in.k = layer.k.narrow(0, 0, needed);
  in.v = layer.v.narrow(0, 0, needed);
}

at::Tensor SelfAttention::core(const at::Tensor& fused, const at::Tensor& query, const Microbatch& batch) {
  Saved saved;
  at::Tensor out;
  const bool keep = at::GradMode::is_enabled();
  {
    const at::NoGradGuard no_grad;
    CoreInputs in = split(fused.detach(), query.defined() ? query.detach() : query);
    if (q_norm_) {
      in.q = q_norm_->apply(in.q, keep ? &saved.q_norm : nullptr);
      in.k = k_norm_->apply(in.k, keep ? &saved.k_norm : nullptr);
    }
    saved.first_position = batch.cache != nullptr ? batch.cache->length : 0;
    if (rope_) {
      rope_->rotate(in.q, saved.first_position, 1);
      rope_->rotate(in.k, saved.first_position, 1);
    }
    if (batch.cache != nullptr) append_to_cache(in, *batch.cache);
    saved.spec = {dropout_, first_head_, saved.first_position, false};
    out = core_attention(in, saved.spec, batch, keep ? &saved.core : nullptr);
  }
  return comm::attach(out, {fused, query},
                      [this, batch, saved, sizes = fused.sizes().vec()](const at::Tensor& dout) -> comm::Gradients {
                        const at::NoGradGuard no_grad;
                        CoreInputs d = core_attention_backward(dout, saved.spec, batch, saved.core);
                        if (rope_) {
                          rope_->rotate(d.q, saved.first_position, -1);
                          rope_->rotate(d.k, saved.first_position, -1);
                        }
                        if (q_norm_) {
                          d.q = q_norm_->backward(d.q, saved.q_norm);
                          d.k = k_norm_->backward(d.k, saved.k_norm);
                        }
                        at::Tensor dfused = at::empty(sizes, d.k.options()), dquery;
                        const int64_t s = sizes[0], b = sizes[1], per_group = layout_.heads / layout_.groups,
                                      leading = q_ ? 0 : per_group;
                        const at::Tensor grouped = dfused.view({s, b, layout_.groups, leading + 2, layout_.head_dim});
                        grouped.select(3, leading).copy_(d.k);
                        grouped.select(3, leading + 1).copy_(d.v);
                        if (q_) {
                          dquery = d.q.reshape({s, b, -1});
                        } else {
                          grouped.narrow(3, 0, per_group).copy_(d.q.unflatten(2, {layout_.groups, per_group}));
                        }
                        return {dfused, dquery};
                      });
}

at::Tensor SelfAttention::forward(const at::Tensor& x_sbh, const Microbatch& batch, const at::Tensor& query_sbh) {
  MPX_ASSERT(query_sbh.defined() == spec_.query_from_outside, spec_.name, ": where the queries come from");
  const at::Tensor fused = fused_.forward(x_sbh);
  return proj_.forward(core(fused, q_ ? q_->forward(query_sbh) : at::Tensor(), batch));
}

void SelfAttention::collect_params(std::vector<Param*>& params) {
  if (q_) q_->collect_params(params);
  fused_.collect_params(params);
  if (q_norm_) {
    q_norm_->collect_params(params);
    k_norm_->collect_params(params);
  }
  proj_.collect_params(params);
}

}  // namespace metroplex::nn

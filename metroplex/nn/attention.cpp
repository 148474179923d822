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
  const HeadCounts whole = head_counts(model, 1);
  const int64_t queries = spec.query_from_outside ? 0 : whole.heads;
  LinearSpec out = linear(spec.name + (spec.query_from_outside ? ".linear_kv" : ".linear_qkv"), model.hidden_size,
                          (queries + 2 * whole.groups) * whole.head_dim, model.add_bias_linear || model.add_qkv_bias);
  const int64_t d = whole.head_dim, q = queries / whole.groups * d;
  for (int64_t group = 0; group < whole.groups; ++group) {
    const std::string name = "group" + std::to_string(group);
    const int64_t begin = group * (q + 2 * d);
    if (q > 0) out.parts.push_back({name + ".q", 0, begin, q, false});
    out.parts.push_back({name + ".k", 0, begin + q, d, false});
    out.parts.push_back({name + ".v", 0, begin + q + d, d, false});
  }
  return out;
}

LinearSpec projection(const AttentionSpec& spec, const config::Model& model) {
  const HeadCounts whole = head_counts(model, 1);
  LinearSpec out =
      linear(spec.name + ".linear_proj", whole.heads * whole.head_dim, model.hidden_size, model.add_bias_linear);
  out.skip_bias_add = true;
  out.init = Init::scaled_normal;
  return out;
}

}  // namespace

HeadCounts head_counts(const config::Model& model, int tp) {
  const int64_t heads = model.num_attention_heads,
                groups = model.num_query_groups > 0 ? model.num_query_groups : heads;
  MPX_CHECK(heads % groups == 0 && groups % tp == 0, "nn", "num_query_groups = ", groups,
            " must divide num_attention_heads = ", heads, " and be a multiple of tensor parallel size ", tp);
  return {heads / tp, groups / tp, model.kv_channels > 0 ? model.kv_channels : model.hidden_size / heads};
}

// What the closure of the core needs beside the microbatch.
struct SelfAttention::AttentionSaved {
  CoreSpec spec;
  std::vector<int64_t> fused_sizes;
  NormSaved q_norm, k_norm;  // without x, which is raw
  Saved raw_q, raw_k;
  Saved q, k, v;  // as the core takes them
  Saved out, logsumexp;
  CoreSaved again;  // where the core is recomputed, instead of the above, once it has been made
};

SelfAttention::SelfAttention(const AttentionSpec& spec, const config::Model& model, const LayerContext& context,
                             std::shared_ptr<RopeTable> rope)
    : spec_(spec),
      heads_(head_counts(model, context.tp.size())),
      dropout_{context.seed, spec.layer, RandomSite::attention_probabilities, model.attention_dropout,
               context.target},
      first_head_(heads_.heads * context.tp.index()),
      saving_(context.saving),
      target_(context.target),
      rope_(std::move(rope)),
      fused_(fused_spec(spec, model), context),
      proj_(projection(spec, model), context) {
  if (spec.query_from_outside) {
    const HeadCounts whole = head_counts(model, 1);
    q_.emplace(linear(spec.name + ".linear_q", model.hidden_size, whole.heads * whole.head_dim,
                      model.add_bias_linear || model.add_qkv_bias),
               context);
  }
  if (model.qk_layernorm) {
    const bool rms = model.normalization == config::Normalization::RMSNorm;
    const auto norm = [&](const char* name) {  // a rank sees its own heads
      return NormSpec{spec.name + name,        heads_.head_dim,    rms,
                      model.layernorm_epsilon, topology::Axis::tp, topology::Role::qk_norm};
    };
    q_norm_.emplace(norm(".q_layernorm"), context);
    k_norm_.emplace(norm(".k_layernorm"), context);
  }
}

// Views into the fused tensor. Queries of several heads a group lie apart and are copied; for backward keys and
// values are too, so that nothing holds the fused tensor.
CoreInputs SelfAttention::split(const at::Tensor& fused, const at::Tensor& query, bool keeps) const {
  const int64_t s = fused.size(0), b = fused.size(1), d = heads_.head_dim, per_group = heads_.heads / heads_.groups;
  const int64_t leading = query.defined() ? 0 : per_group;
  const at::Tensor grouped = fused.view({s, b, heads_.groups, leading + 2, d});
  const at::Tensor q = query.defined() ? query.view({s, b, heads_.heads, d})
                                       : grouped.narrow(3, 0, per_group).reshape({s, b, heads_.heads, d});
  const at::Tensor k = grouped.select(3, leading), v = grouped.select(3, leading + 1);
  if (keeps && leading > 1) return {q, k.contiguous(), v.contiguous()};
  return {q, k, v};
}

CoreInputs SelfAttention::normalize_and_rotate(const CoreInputs& raw, const Positions& rows, AttentionSaved* saved) {
  CoreInputs in = raw;
  if (q_norm_) {
    in.q = q_norm_->apply(raw.q, saved ? &saved->q_norm : nullptr);
    in.k = k_norm_->apply(raw.k, saved ? &saved->k_norm : nullptr);
  }
  if (rope_) {
    rope_->rotate(in.q, rows, 1);
    rope_->rotate(in.k, rows, 1);
  }
  return in;
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

Input SelfAttention::core(const at::Tensor& fused, const at::Tensor& query, const Microbatch& batch) {
  const bool keeps = at::GradMode::is_enabled();
  const auto saved = std::make_shared<AttentionSaved>();
  CoreInputs raw;
  CoreSaved core;
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    raw = split(fused.detach(), query.defined() ? query.detach() : query, keeps);
    const Positions rows = sequence_positions(batch);
    const bool cached = batch.cache != nullptr;  // with the keys of all rows so far
    saved->spec = {dropout_, first_head_, rows, cached ? Positions() : rows, target_};
    saved->fused_sizes = fused.sizes().vec();
    CoreInputs in = normalize_and_rotate(raw, rows, keeps ? saved.get() : nullptr);
    if (cached) append_to_cache(in, *batch.cache);
    out = core_attention(in, saved->spec, batch, keeps ? &core : nullptr);
  }
  if (!keeps) return out;
  keep(raw, core, *saved);
  out = comm::attach(out, {fused, query}, [this, batch, saved](const at::Tensor& dout) -> comm::Gradients {
    return core_backward(dout, batch, *saved);
  });
  if (!saving_.recomputes(SavePoint::core_attn)) return out;
  return {out, Saved::recomputed([this, batch, saved] {
            CoreInputs in{saved->q.get(), saved->k.get(), saved->v.get()};
            if (q_norm_) {
              in = normalize_and_rotate({saved->raw_q.get(), saved->raw_k.get(), in.v}, saved->spec.queries, nullptr);
            }
            return core_attention(in, saved->spec, batch, &saved->again);
          })};
}

// Made again are the core's results, and behind a norm its queries and keys.
void SelfAttention::keep(const CoreInputs& raw, const CoreSaved& core, AttentionSaved& saved) const {
  saved.q_norm.x = saved.k_norm.x = at::Tensor();
  if (q_norm_) {
    saved.raw_q = saving_.keep(raw.q);
    saved.raw_k = saving_.keep(raw.k);
  }
  if (!q_norm_ || !saving_.recomputes(SavePoint::core_attn)) {
    saved.q = saving_.keep(core.in.q);
    saved.k = saving_.keep(core.in.k);
  }
  saved.v = saving_.keep(core.in.v);
  if (saving_.recomputes(SavePoint::core_attn)) return;
  saved.out = saving_.keep(core.out);
  saved.logsumexp = saving_.keep(core.logsumexp);
}

std::vector<at::Tensor> SelfAttention::core_backward(const at::Tensor& dout, const Microbatch& batch,
                                                     AttentionSaved& saved) {
  const at::NoGradGuard no_grad;
  CoreSaved core = std::move(saved.again);
  if (!saving_.recomputes(SavePoint::core_attn)) {
    core = {{saved.q.get(), saved.k.get(), saved.v.get()}, saved.out.get(), saved.logsumexp.get()};
  }
  CoreInputs d = core_attention_backward(dout, saved.spec, batch, core);
  if (rope_) {
    rope_->rotate(d.q, saved.spec.queries, -1);
    rope_->rotate(d.k, saved.spec.queries, -1);
  }
  if (q_norm_) {
    saved.q_norm.x = saved.raw_q.get();
    saved.k_norm.x = saved.raw_k.get();
    d.q = q_norm_->backward(d.q, saved.q_norm);
    d.k = k_norm_->backward(d.k, saved.k_norm);
  }
  at::Tensor dfused = at::empty(saved.fused_sizes, d.k.options());
  const int64_t s = dfused.size(0), b = dfused.size(1), per_group = heads_.heads / heads_.groups,
                leading = q_ ? 0 : per_group;
  const at::Tensor grouped = dfused.view({s, b, heads_.groups, leading + 2, heads_.head_dim});
  grouped.select(3, leading).copy_(d.k);
  grouped.select(3, leading + 1).copy_(d.v);
  if (q_) return {dfused, d.q.reshape({s, b, -1})};
  grouped.narrow(3, 0, per_group).copy_(d.q.unflatten(2, {heads_.groups, per_group}));
  return {dfused, at::Tensor()};
}

at::Tensor SelfAttention::forward(const Input& in, const Microbatch& batch, const at::Tensor& query_sbh) {
  MPX_ASSERT(query_sbh.defined() == spec_.query_from_outside, spec_.name, ": where the queries come from");
  const at::Tensor fused = fused_.forward(in);
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

#include "nn/attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/experts.h"
#include "config/layer_parts.h"
#include "nn/autograd_node.h"
#include "nn/gated_delta_net.h"
#include "nn/kv_cache.h"
#include "nn/latent_attention.h"
#include "nn/lightning_attention.h"
#include "nn/mamba2.h"
#include "nn/param_init.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

LinearSpec fused_spec(const AttentionSpec& spec, const config::Model& model) {
  const HeadCounts whole = head_counts(model, 1);
  const int64_t queries = spec.has_external_query ? 0 : whole.heads,
                gates = model.attention_output_gate ? queries : 0;
  LinearSpec out =
      linear_spec(spec.name + (spec.has_external_query ? ".linear_kv" : ".linear_qkv"), model.hidden_size,
                  (queries + gates + 2 * whole.groups) * whole.head_dim, model.add_bias_linear || model.add_qkv_bias);
  const int64_t d = whole.head_dim, q = queries / whole.groups * d, gate = gates / whole.groups * d;
  for (int64_t group = 0; group < whole.groups; ++group) {
    const std::string name = "group" + std::to_string(group);
    int64_t begin = group * (q + gate + 2 * d);
    const auto add = [&](const char* matrix, int64_t rows) {
      if (rows > 0) out.regions.push_back({name + "." + matrix, 0, begin, rows, matrix});
      begin += rows;
    };
    add("q", q);
    add("gate", gate);
    add("k", d);
    add("v", d);
  }
  out.adapters = config::qkv_boxes(model, !spec.has_external_query);
  out.skip_bias_gradient = true;
  return out;
}

// Multi-token prediction layers copy the last layer.
size_t layer_in_pattern(const AttentionSpec& spec, const config::Model& model) {
  return static_cast<size_t>(std::min(spec.layer, model.num_layers - 1));
}

}  // namespace

LinearSpec output_projection(const AttentionSpec& spec, const config::Model& model) {
  const HeadCounts whole = head_counts(model, 1);
  LinearSpec out =
      linear_spec(spec.name + ".linear_proj", whole.heads * whole.v_head_dim, model.hidden_size, model.output_bias());
  out.skip_bias_add = !model.needs_whole_sum();
  out.init = Init::scaled_normal;
  out.adapters = {config::whole_layer("o_proj", model.hidden_size)};
  return out;
}

std::shared_ptr<Param> make_sinks(const AttentionSpec& spec, const config::Model& model,
                                  const LayerContext& context) {
  if (model.softmax_type != config::SoftmaxType::learnable) return nullptr;
  return std::make_shared<Param>(make_head_param(spec.name + ".core_attention.softmax_offset",
                                                 model.num_attention_heads, Init::normal, context));
}

CoreSpec core_spec(const AttentionSpec& spec, const config::Model& model, const LayerContext& context) {
  const HeadCounts own = head_counts(model, context.tp.size());
  CoreSpec core;
  core.heads = own.heads, core.groups = own.groups;
  core.head_dim = own.head_dim, core.v_head_dim = own.v_head_dim;
  core.softmax_scale =
      model.softmax_scale > 0 ? model.softmax_scale : 1 / std::sqrt(static_cast<double>(own.head_dim));
  const std::vector<bool> windows = config::window_layers(model);
  const size_t layer = layer_in_pattern(spec, model);
  core.window = windows[layer] ? model.window_size : -1;
  core.chunk = windows[layer] ? model.attention_chunk_size : 0;
  core.softcap = model.attn_logit_softcapping;
  core.softmax = model.softmax_type;
  core.dropout = {context.seed, spec.layer, RandomSite::attention_probabilities, model.attention_dropout,
                  context.target};
  core.first_head = own.heads * context.tp.index();
  core.target = context.target;
  core.cp = context.cp;
  core.cp_a2a = context.cp_a2a, core.cp_p2p = context.cp_p2p;
  core.cp_by_size = context.cp_by_size;
  const auto& exchanges = context.cp_comm_types;
  if (!exchanges.empty()) core.exchange = exchanges[std::min(exchanges.size() - 1, static_cast<size_t>(spec.layer))];
  return core;
}

std::unique_ptr<Attention> make_attention(const AttentionSpec& spec, const config::Model& model,
                                          const LayerContext& context, std::shared_ptr<RopeTable> rope) {
  const config::LayerParts parts = config::parts_of_layer(model, spec.layer);
  if (parts.delta_net) return std::make_unique<GatedDeltaNet>(spec, model, context);
  if (parts.lightning) return std::make_unique<LightningAttention>(spec, model, context);
  if (parts.mamba) return std::make_unique<Mamba2>(spec, model, context);
  if (model.multi_latent_attention) return std::make_unique<LatentAttention>(spec, model, context, std::move(rope));
  return std::make_unique<SelfAttention>(spec, model, context, std::move(rope));
}

HeadCounts head_counts(const config::Model& model, int tp) {
  if (model.multi_latent_attention) {
    const int64_t heads = model.num_attention_heads;
    MPX_CHECK(heads % tp == 0, "nn", "num_attention_heads = ", heads, " must be a multiple of tensor parallel size ",
              tp);
    return {heads / tp, heads / tp, model.qk_head_dim + model.qk_pos_emb_head_dim, model.v_head_dim};
  }
  const int64_t heads = model.num_attention_heads,
                groups = model.num_query_groups > 0 ? model.num_query_groups : heads;
  MPX_CHECK(heads % groups == 0 && groups % tp == 0, "nn", "num_query_groups = ", groups,
            " must divide num_attention_heads = ", heads, " and be a multiple of tensor parallel size ", tp);
  const int64_t width = model.kv_channels > 0 ? model.kv_channels : model.hidden_size / heads;
  return {heads / tp, groups / tp, width, width};
}

using Of = RopeTable::Of;

// Empty if there is no norm.
struct SelfAttention::NormedSaved {
  NormSaved norm;  // without x, which is in `raw`
  Saved raw;
};
struct SelfAttention::AttentionSaved {
  NormedSaved q, k;
  Saved fused;  // with fuses_norms_, instead of `raw` of q and k
  CoreSaved core;
  Saved gate;
};
struct SelfAttention::Projected {
  Input q, k;
  at::Tensor v, gate;  // gate [s, b, n, d] or [s, b, g, n/g, d]; undefined without attention_output_gate
};

SelfAttention::SelfAttention(const AttentionSpec& spec, const config::Model& model, const LayerContext& context,
                             std::shared_ptr<RopeTable> rope)
    : spec_(spec),
      target_(context.target),
      heads_(head_counts(model, context.tp.size())),
      saving_(context.saving),
      norms_after_rope_(model.qk_layernorm_after_rope || model.qk_l2_norm),
      has_gate_(model.attention_output_gate),
      rope_(std::move(rope)),
      fused_(fused_spec(spec, model), LinearSplit::output, context),
      sinks_(make_sinks(spec, model, context)),
      core_(core_spec(spec, model, context), context.saving, sinks_),
      proj_(output_projection(spec, model), LinearSplit::input, context) {
  if (spec.has_external_query) {
    const HeadCounts whole = head_counts(model, 1);
    q_.emplace(linear_spec(spec.name + ".linear_q", model.hidden_size, whole.heads * whole.head_dim,
                           model.add_bias_linear || model.add_qkv_bias),
               LinearSplit::output, context);
  }
  const bool has_l2_norm = model.qk_l2_norm && config::rope_layers(model)[layer_in_pattern(spec, model)];
  if (model.qk_layernorm || has_l2_norm) {
    const bool rms = model.normalization == config::Normalization::RMSNorm;
    const auto norm = [&](const char* name, int64_t heads) {
      NormSpec norm{spec.name + name,        heads_.head_dim,         rms, model.layernorm_epsilon, {},
                    topology::Role::qk_norm, model.apply_layernorm_1p};
      norm.add_bias = model.add_norm_bias;
      if (has_l2_norm) norm.rms = true, norm.one_plus = norm.has_weight = false;
      if (model.qk_layernorm_all_heads) norm.width *= heads, norm.columns = context.tp;
      else norm.partial = topology::Axis::tp;  // a rank has only its heads
      return norm;
    };
    q_norm_.emplace(norm(".q_layernorm", heads_.heads), context);
    k_norm_.emplace(norm(".k_layernorm", heads_.groups), context);
    fuses_norms_ = !q_ && !norms_after_rope_ && q_norm_->is_head_norm(heads_.head_dim);
  }
}

// Angles of x if split() or split_and_normalize() rotates it.
RopeTable::Angles SelfAttention::angles_before_norm(const at::Tensor& x, const Positions& rows, Of what) const {
  return rope_ && (!q_norm_ || norms_after_rope_ || fuses_norms_) ? rope_->angles(x, rows, what)
                                                                  : RopeTable::Angles();
}

// Returns q, k and v, rotated unless a norm comes first. With one query head per group they are views of the fused
// tensor [s, b, g (n/g + 2) d], otherwise they are copied in the same pass, also with gates [s, b, g (2 n/g + 2) d].
SelfAttention::Projected SelfAttention::split(const at::Tensor& fused, const at::Tensor& query,
                                              const Positions& rows) const {
  const int64_t s = fused.size(0), b = fused.size(1), d = heads_.head_dim, per_group = heads_.heads / heads_.groups;
  const RopeTable::Angles of_queries = angles_before_norm(fused, rows, Of::queries),
                          of_keys = angles_before_norm(fused, rows, Of::keys);
  if (query.defined() || (per_group == 1 && !has_gate_)) {
    const at::Tensor grouped = fused.view({s, b, heads_.groups, query.defined() ? 2 : 3, d});
    const Projected out{query.defined() ? query.view({s, b, heads_.heads, d}) : grouped.select(3, 0),
                        grouped.select(3, grouped.size(3) - 2),
                        grouped.select(3, grouped.size(3) - 1),
                        {}};
    if (of_queries.cos.defined()) rope_->rotate(out.q.x, of_queries, 1);
    if (of_keys.cos.defined()) rope_->rotate(out.k.x, of_keys, 1);
    return out;
  }
  const auto make = [&](int64_t heads) { return at::empty({s, b, heads, d}, fused.options()); };
  const Projected out{make(heads_.heads), make(heads_.groups), make(heads_.groups),
                      has_gate_ ? make(heads_.heads) : at::Tensor()};
  std::vector<FusedHeads> heads{{out.q.x, of_queries}};
  if (has_gate_) heads.push_back({out.gate});
  heads.insert(heads.end(), {{out.k.x, of_keys}, {out.v}});
  split_heads(target_, fused, heads_.groups, heads);
  return out;
}

// Heads of split_and_normalize(): undefined q or k, gates and values are skipped.
std::vector<FusedHeads> SelfAttention::normed_heads(const at::Tensor& q, const at::Tensor& k,
                                                    const Positions& rows) const {
  const int64_t per_group = heads_.heads / heads_.groups;
  const auto skip = [](int64_t heads) { return FusedHeads{.x = {}, .skipped = heads}; };
  std::vector<FusedHeads> all;
  all.push_back(q.defined() ? FusedHeads{q, angles_before_norm(q, rows, Of::queries), q_norm_->head_norm()}
                            : skip(per_group));
  if (has_gate_) all.push_back(skip(per_group));
  all.push_back(k.defined() ? FusedHeads{k, angles_before_norm(k, rows, Of::keys), k_norm_->head_norm()} : skip(1));
  all.push_back(skip(1));
  return all;
}

// With fuses_norms_: returns normalized and rotated q and k, and v and gates as views of `fused`, which backward
// needs anyway.
SelfAttention::Projected SelfAttention::split_and_normalize(const at::Tensor& fused, const Positions& rows,
                                                            AttentionSaved* saved) const {
  const int64_t s = fused.size(0), b = fused.size(1), d = heads_.head_dim, per_group = heads_.heads / heads_.groups;
  const at::Tensor grouped = fused.view({s, b, heads_.groups, -1, d});
  const at::Tensor values = grouped.select(3, grouped.size(3) - 1),
                   gate = has_gate_ ? grouped.narrow(3, per_group, per_group) : at::Tensor(),
                   q = at::empty({s, b, heads_.heads, d}, fused.options()),
                   k = at::empty({s, b, heads_.groups, d}, fused.options());
  std::vector<FusedHeads> heads = normed_heads(q, k, rows);
  HeadNorm &q_norm = heads.front().norm, &k_norm = heads[heads.size() - 2].norm;
  if (saved != nullptr) {
    const auto statistics = fused.options().dtype(acc_type(fused.scalar_type()));
    saved->q.norm.rstd = q_norm.rstd = at::empty({s, b, heads_.heads}, statistics);
    saved->k.norm.rstd = k_norm.rstd = at::empty({s, b, heads_.groups}, statistics);
    saved->fused = saving_.keep(fused);
  }
  split_heads(target_, fused, heads_.groups, heads);
  if (saved == nullptr) return {q, k, values, gate};
  const auto recomputed = [this, rows, raw = saved->fused](bool queries, at::IntArrayRef sizes) {
    return Saved::recomputed([this, rows, raw, queries, sizes = sizes.vec()] {
      const at::Tensor fused = raw.get(), x = at::empty(sizes, fused.options());
      split_heads(target_, fused, heads_.groups,
                  normed_heads(queries ? x : at::Tensor(), queries ? at::Tensor() : x, rows));
      return x;
    });
  };
  return {{q, recomputed(true, q.sizes())}, {k, recomputed(false, k.sizes())}, values, gate};
}

static at::Tensor gated(const at::Tensor& core, const at::Tensor& gate) {
  return at::mul(to_wide(core), to_wide(gate).sigmoid().flatten(2)).to(core.scalar_type());
}

// The result of the core is saved in any case, so that the product is computed again from it.
Input SelfAttention::apply_gate(const Input& core, const at::Tensor& gate, AttentionSaved* saved) const {
  const at::Tensor out = gated(core.x, gate);
  if (saved == nullptr) return out;
  saved->gate = saving_.keep(gate);
  return {out, Saved::recomputed([saved_core = saved->core.out, saved_gate = saved->gate] {
            return gated(saved_core.get(), saved_gate.get());
          })};
}

at::Tensor SelfAttention::normalize(const at::Tensor& raw, Norm& norm, const Positions& rows, NormSaved* saved) {
  const at::Tensor x = norm.apply(raw, saved);
  if (rope_ && !norms_after_rope_) rope_->rotate(x, rows, 1, &norm == &*q_norm_ ? Of::queries : Of::keys);
  return x;
}

// `saved` may be null. With a norm, saves `raw`, and the result can be recomputed from it.
Input SelfAttention::normalize_saving(const at::Tensor& raw, std::optional<Norm>& norm, const Positions& rows,
                                      NormedSaved* saved) {
  if (!norm) return raw;
  const at::Tensor x = normalize(raw, *norm, rows, saved ? &saved->norm : nullptr);
  if (saved == nullptr) return x;
  saved->norm.x = at::Tensor();
  saved->raw = saving_.keep(raw);
  return {x, Saved::recomputed([this, saved_raw = saved->raw, &norm, rows] {
            return normalize(saved_raw.get(), *norm, rows, nullptr);
          })};
}

// Overwrites dx. Returns the gradient of the tensors that split() returns.
at::Tensor SelfAttention::backward_to_raw(const at::Tensor& dx, std::optional<Norm>& norm, const Positions& rows,
                                          NormedSaved& saved) {
  if (!norm) return dx;
  if (rope_ && !norms_after_rope_) rope_->rotate(dx, rows, -1, &norm == &q_norm_ ? Of::queries : Of::keys);
  saved.norm.x = saved.raw.get();
  return norm->backward(dx, saved.norm);
}

Input SelfAttention::run_core(const at::Tensor& fused, const at::Tensor& query, const Microbatch& batch) {
  const auto saved = at::GradMode::is_enabled() ? std::make_shared<AttentionSaved>() : nullptr;
  Input out = [&] {
    const at::NoGradGuard no_grad;
    const Positions rows = sequence_positions(batch);
    Projected in = fuses_norms_ ? split_and_normalize(fused.detach(), rows, saved.get())
                                : split(fused.detach(), query.defined() ? query.detach() : query, rows);
    if (!fuses_norms_) {
      in.q = normalize_saving(in.q.x, q_norm_, rows, saved ? &saved->q : nullptr);
      in.k = normalize_saving(in.k.x, k_norm_, rows, saved ? &saved->k : nullptr);
    }
    CoreSaved* const core_saved = saved ? &saved->core : nullptr;
    // Norms are applied again only for a core that is computed again.
    if (!saving_.recomputes(SavePoint::core_attn)) in.q = in.q.x, in.k = in.k.x;
    const Input core = [&] {
      if (batch.cache == nullptr) return core_.forward(in.q, in.k, in.v, {rows, rows}, batch, core_saved);
      const KvCache::Layer all = batch.cache->append(spec_.layer, in.k.x, in.v);
      return core_.forward(in.q, all.k, all.v, {rows, {}}, batch, core_saved);
    }();
    return has_gate_ ? apply_gate(core, in.gate, saved.get()) : core;
  }();
  if (!saved) return out;
  out.x = attach(out.x, {fused, query},
                 [this, saved](const at::Tensor& dout) -> Gradients { return run_core_backward(dout, *saved); });
  return out;
}

std::vector<at::Tensor> SelfAttention::run_core_backward(const at::Tensor& dout, AttentionSaved& saved) {
  const at::NoGradGuard no_grad;
  at::Tensor dcore = dout, dgate;
  if (has_gate_) {
    const at::Tensor gate = to_wide(saved.gate.get()).sigmoid().flatten(2);
    dgate = at::sigmoid_backward(at::mul(to_wide(dout), saved.core.out.get()), gate).to(dout.scalar_type());
    dcore = at::mul(to_wide(dout), gate).to(dout.scalar_type());
  }
  CoreInputs gradients = core_.backward(dcore, saved.core);
  const Positions& rows = saved.core.positions.queries;
  if (!fuses_norms_) {
    gradients.q = backward_to_raw(gradients.q, q_norm_, rows, saved.q);
    gradients.k = backward_to_raw(gradients.k, k_norm_, rows, saved.k);
  }
  const RopeTable::Angles of_queries = angles_before_norm(gradients.q, rows, Of::queries);
  const auto head_norm = [this](const std::optional<Norm>& norm, const NormedSaved& of) {
    if (!fuses_norms_) return HeadNorm();
    HeadNorm out = norm->head_norm();
    out.rstd = of.norm.rstd;
    return out;
  };
  std::vector<FusedHeads> heads;
  if (!q_) heads.push_back({gradients.q, of_queries, head_norm(q_norm_, saved.q)});
  if (has_gate_) heads.push_back({dgate.view(gradients.q.sizes())});
  heads.push_back({gradients.k, angles_before_norm(gradients.k, rows, Of::keys), head_norm(k_norm_, saved.k)});
  heads.push_back({gradients.v});
  Param* const bias = fused_.bias();
  const bool sums_bias = bias != nullptr && !bias->frozen && !fuses_norms_;
  const auto [dfused, lines] = join_heads(target_, {heads_.groups, saved.fused.get(), sums_bias}, heads);
  if (sums_bias) accumulate_line_sums(target_, {{bias, lines.front()}});
  else if (bias != nullptr) accumulate_bias_gradient(target_, *bias, dfused);
  if (fuses_norms_) accumulate_line_sums(target_, {q_norm_->weight_lines(lines[0]), k_norm_->weight_lines(lines[1])});
  if (!q_) return {dfused, at::Tensor()};
  if (of_queries.cos.defined()) rope_->rotate(gradients.q, of_queries, -1);
  return {dfused, gradients.q.flatten(2)};
}

at::Tensor SelfAttention::forward(const Input& in, const Microbatch& batch, const at::Tensor& query_sbh) {
  MPX_ASSERT(query_sbh.defined() == spec_.has_external_query, spec_.name,
             ": the source of the queries differs from the spec");
  const at::Tensor fused = fused_.forward(in, batch);
  const Input out = run_core(fused, q_ ? q_->forward(query_sbh, batch) : at::Tensor(), batch);
  return proj_.forward(out, batch);
}

void SelfAttention::collect_params(std::vector<Param*>& params) {
  if (q_) q_->collect_params(params);
  fused_.collect_params(params);
  if (q_norm_) {
    q_norm_->collect_params(params);
    k_norm_->collect_params(params);
  }
  if (sinks_) params.push_back(sinks_.get());
  proj_.collect_params(params);
}

}  // namespace metroplex::nn

#include "nn/gated_delta_net.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "nn/autograd_node.h"
#include "nn/kv_cache.h"
#include "nn/param_init.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

constexpr double kNormEpsilon = 1e-6;  // of the L2 norms, as in Megatron

LinearSpec in_projection(const AttentionSpec& spec, const config::Model& model,
                         const std::vector<int64_t>& sections) {
  LinearSpec out = linear_spec(spec.name + ".in_proj", model.hidden_size, 0, /*bias=*/false);
  out.sections = sections;
  static constexpr const char* kNames[] = {"query", "key", "value", "z", "beta", "alpha"};
  for (size_t i = 0; i < sections.size(); ++i) {
    out.regions.push_back({kNames[i], 0, out.out_features, sections[i]});
    out.out_features += sections[i];
  }
  return out;
}

LinearSpec out_projection(const AttentionSpec& spec, const config::Model& model, int64_t width) {
  LinearSpec out = linear_spec(spec.name + ".out_proj", width, model.hidden_size, /*bias=*/false);
  out.init = Init::scaled_normal;
  return out;
}

NormSpec head_norm(const AttentionSpec& spec, const config::Model& model) {
  NormSpec norm{spec.name + ".out_norm", model.linear_value_head_dim, /*rms=*/true, model.layernorm_epsilon};
  norm.partial = topology::Axis::tp;  // a rank has only its heads
  return norm;
}

struct Normalized {
  at::Tensor x, rnorm;  // x / norm, 1 / norm
};
Normalized l2_normalize(const at::Tensor& x) {
  const at::Tensor wide = to_wide(x), rnorm = wide.square().sum(-1, /*keepdim=*/true).add_(kNormEpsilon).rsqrt_();
  return {at::mul(wide, rnorm), rnorm};
}
at::Tensor l2_normalize_backward(const at::Tensor& dy, const Normalized& normalized) {
  const at::Tensor along = at::mul(dy, normalized.x).sum(-1, /*keepdim=*/true);
  return at::mul(at::sub(dy, at::mul(normalized.x, along)), normalized.rnorm);
}

}  // namespace

GatedDeltaNet::Sizes::Sizes(const config::Model& model, int64_t ranks)
    : key_heads(model.linear_num_key_heads / ranks),
      heads(model.linear_num_value_heads / ranks),
      key_dim(model.linear_key_head_dim),
      value_dim(model.linear_value_head_dim) {
  MPX_CHECK(model.linear_num_key_heads % ranks == 0 && heads % key_heads == 0, "nn",
            "model.linear_num_key_heads = ", model.linear_num_key_heads,
            ": must divide linear_num_value_heads = ", model.linear_num_value_heads, " and be a multiple of the ",
            ranks, " tensor-parallel times context-parallel ranks; choose other sizes");
}

// Values between the projection and the recurrence, for the whole sequence and this rank's heads.
struct GatedDeltaNet::Mixed {
  at::Tensor qkv, z;  // sections of the projection
  at::Tensor alpha;   // with dt_bias
  Normalized q, k;
  at::Tensor rate;  // exp(A_log)
  DeltaRuleInputs rule;
};

GatedDeltaNet::GatedDeltaNet(const AttentionSpec& spec, const config::Model& model, const LayerContext& context)
    : spec_(spec),
      sizes_(model, context.tp.size() * context.cp.size()),
      saving_(context.saving),
      target_(context.target),
      inputs_(Sizes(model, context.tp.size()).sections(), context.cp),
      results_({Sizes(model, context.tp.size()).values()}, context.cp),
      heads_({Sizes(model, context.tp.size()).heads}, context.cp),
      in_proj_(in_projection(spec, model, Sizes(model, 1).sections()), LinearSplit::output, context),
      convolution_(
          {spec.name + ".conv1d",
           {{"query", Sizes(model, 1).keys()}, {"key", Sizes(model, 1).keys()}, {"value", Sizes(model, 1).values()}},
           model.linear_conv_kernel_dim},
          context),
      dt_bias_(make_head_param(spec.name + ".dt_bias", model.linear_num_value_heads, Init::ones, context)),
      a_log_(make_head_param(spec.name + ".A_log", model.linear_num_value_heads, Init::log_uniform, context)),
      out_norm_(head_norm(spec, model), context),
      out_proj_(out_projection(spec, model, Sizes(model, 1).values()), LinearSplit::input, context) {}

GatedDeltaNet::Mixed GatedDeltaNet::mix(const at::Tensor& projected, const Microbatch& batch,
                                        at::Tensor* cached) const {
  const at::Tensor rows = inputs_.to_sequence(projected, batch);
  const int64_t s = rows.size(0), b = rows.size(1), keys = sizes_.keys(), values = sizes_.values();
  const auto sections = rows.split_with_sizes({2 * keys + values, values, sizes_.heads, sizes_.heads}, 2);
  Mixed mixed;
  mixed.qkv = sections[0];
  mixed.z = sections[1].view({s, b, sizes_.heads, sizes_.value_dim});
  mixed.alpha = at::add(to_wide(sections[3]), heads_.share(dt_bias_.data));
  const at::Tensor qkv = convolution_.apply(mixed.qkv, batch.documents.ids, cached);
  const std::vector<int64_t> key_sizes{s, b, sizes_.key_heads, sizes_.key_dim};
  mixed.q = l2_normalize(qkv.narrow(2, 0, keys).view(key_sizes));
  mixed.k = l2_normalize(qkv.narrow(2, keys, keys).view(key_sizes));
  mixed.rate = to_wide(heads_.share(a_log_.data)).exp();
  mixed.rule = {mixed.q.x, mixed.k.x, qkv.narrow(2, 2 * keys, values).view(mixed.z.sizes()),
                at::mul(at::softplus(mixed.alpha), mixed.rate).neg_(), to_wide(sections[2]).sigmoid()};
  return mixed;
}

at::Tensor GatedDeltaNet::run(const at::Tensor& projected, const Microbatch& batch) const {
  KvCache::Recurrent* const cached = batch.cache != nullptr ? &batch.cache->recurrent[spec_.layer] : nullptr;
  const at::Tensor state = cached != nullptr ? cached->state : at::Tensor();
  const Mixed mixed = mix(projected, batch, cached != nullptr ? &cached->inputs : nullptr);
  const bool one_token = cached != nullptr && mixed.z.size(0) == 1;
  const DeltaRuleResult result = one_token
                                     ? recurrent_delta_rule(mixed.rule, batch.documents.ids, state)
                                     : ChunkedDeltaRule(mixed.rule, batch.documents.ids, state, target_).result();
  if (cached != nullptr) cached->state = result.state;
  const at::Tensor gated = at::mul(to_wide(out_norm_.apply(result.out, nullptr)), at::silu(to_wide(mixed.z)));
  return results_.to_rows(gated.to(projected.scalar_type()).flatten(2), batch);
}

at::Tensor GatedDeltaNet::backward(const at::Tensor& dout, const at::Tensor& projected, const Microbatch& batch) {
  const at::NoGradGuard no_grad;
  const Mixed mixed = mix(projected, batch, nullptr);
  const ChunkedDeltaRule rule(mixed.rule, batch.documents.ids, {}, target_);
  NormSaved saved;
  const at::Tensor normed = to_wide(out_norm_.apply(rule.result().out, &saved)), z = to_wide(mixed.z),
                   dy = to_wide(results_.to_sequence(dout, batch)).reshape(z.sizes()),
                   dz = at::silu_backward(at::mul(dy, normed), z);
  const DeltaRuleInputs gradients = rule.backward(to_wide(out_norm_.backward(at::mul(dy, at::silu(z)), saved)));
  const at::Tensor dqkv = at::cat({l2_normalize_backward(gradients.q, mixed.q).flatten(2),
                                   l2_normalize_backward(gradients.k, mixed.k).flatten(2), gradients.v.flatten(2)},
                                  2);
  const at::Tensor& beta = mixed.rule.beta;
  const at::Tensor dbeta = at::sigmoid_backward(gradients.beta, beta),
                   dalpha = at::softplus_backward(at::mul(gradients.g, mixed.rate).neg_(), mixed.alpha, 1, 20);
  heads_.accumulate(dt_bias_, dalpha.sum(at::IntArrayRef({0, 1})));
  heads_.accumulate(a_log_, at::mul(gradients.g, mixed.rule.g).sum(at::IntArrayRef({0, 1})));
  const at::Tensor drows =
      at::cat({convolution_.backward(dqkv, mixed.qkv, batch.documents.ids), dz.flatten(2), dbeta, dalpha}, 2);
  return inputs_.to_rows(drows.to(projected.scalar_type()), batch);
}

Input GatedDeltaNet::run_core(const at::Tensor& projected, const Microbatch& batch) {
  at::Tensor out = [&] {
    const at::NoGradGuard no_grad;
    return run(projected.detach(), batch);
  }();
  if (!at::GradMode::is_enabled()) return out;
  const Saved saved = saving_.keep(projected);
  out = attach(out, {projected}, [this, saved, batch](const at::Tensor& dout) -> Gradients {
    return {backward(dout, saved.get(), batch)};
  });
  if (!saving_.recomputes(SavePoint::core_attn)) return out;
  return {out, Saved::recomputed([this, saved, batch] { return run(saved.get(), batch); })};
}

at::Tensor GatedDeltaNet::forward(const Input& in, const Microbatch& batch, const at::Tensor& query_sbh) {
  MPX_ASSERT(!query_sbh.defined(), spec_.name, ": linear attention has no external queries");
  return out_proj_.forward(run_core(in_proj_.forward(in, batch), batch), batch);
}

void GatedDeltaNet::collect_params(std::vector<Param*>& params) {
  in_proj_.collect_params(params);
  convolution_.collect_params(params);
  params.push_back(&dt_bias_);
  params.push_back(&a_log_);
  out_norm_.collect_params(params);
  out_proj_.collect_params(params);
}

}  // namespace metroplex::nn

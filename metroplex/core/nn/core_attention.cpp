#include "nn/core_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "nn/attention_by_products.h"
#include "nn/blocked_attention.h"
#include "nn/context_attention.h"
#include "nn/library_attention.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

bool needs_exchange(const CoreCall& call) { return call.spec.cp.size() > 1; }

// Inputs of a recomputation, and the logsumexp that it stores for backward.
struct RecomputedAttention {
  Saved q, k, v;
  CorePositions positions;
  Microbatch batch;
  at::Tensor logsumexp;
};

}  // namespace

CoreResult attend(const CoreInputs& in, const CoreCall& call) {
  if (!call.spec.target.gpu()) return blocked_attention(in, call);
  const std::optional<CoreResult> result = library_attention(in, call);
  return result.has_value() ? *result : attention_by_products(in, call);
}

CoreInputs attend_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                           const CoreCall& call) {
  if (!call.spec.target.gpu()) return blocked_attention_backward(dout, in, result, call);
  const std::optional<CoreInputs> d = library_attention_backward(dout, in, result, call);
  return d.has_value() ? *d : attention_by_products_backward(dout, in, result, call);
}

CoreAttention::CoreAttention(const CoreSpec& spec, const SavePolicy& saving, std::shared_ptr<Param> sinks)
    : spec_(spec), saving_(saving), sinks_(std::move(sinks)) {
  MPX_ASSERT((spec.softmax == config::SoftmaxType::learnable) == (sinks_ != nullptr),
             "sinks must exist exactly with softmax_type = learnable");
  MPX_ASSERT(spec.groups > 0 && spec.heads % spec.groups == 0 && spec.head_dim > 0 && spec.v_head_dim > 0,
             "core attention of ", spec.heads, " heads in ", spec.groups, " groups of sizes ", spec.head_dim, " and ",
             spec.v_head_dim);
  for (const comm::Group& group : spec.cp_by_size) by_size_.emplace_back(spec).cp = group;
}

const CoreSpec& CoreAttention::spec_for(const Microbatch& batch) const {
  if (batch.sequence.context_ranks == 0) return spec_;
  for (const CoreSpec& spec : by_size_) {
    if (spec.cp.size() == batch.sequence.context_ranks) return spec;
  }
  MPX_ASSERT(false, "a microbatch for ", batch.sequence.context_ranks, " ranks without a group");
  return spec_;
}

CoreResult CoreAttention::compute(const CoreInputs& in, const CorePositions& positions,
                                  const Microbatch& batch) const {
  const CoreCall call{spec_for(batch), positions, batch};
  const CoreResult result = needs_exchange(call) ? context_attention(in, call) : attend(in, call);
  return spec_.softmax == config::SoftmaxType::vanilla ? result : with_sinks(result);
}

at::Tensor CoreAttention::sink_scores(const at::Tensor& logsumexp) const {
  const at::Tensor scores = sinks_ ? to_wide(sinks_->data) : at::zeros({spec_.heads}, logsumexp.options());
  return scores.view({1, -1, 1});
}

// A sink adds a score to the softmax's denominator, which scales the result by the remaining share. The returned
// logsumexp includes the sinks, so the gradients of q, k and v need no other change.
CoreResult CoreAttention::with_sinks(const CoreResult& result) const {
  const at::Tensor all = at::logaddexp(result.logsumexp, sink_scores(result.logsumexp));
  const at::Tensor share = (result.logsumexp - all).exp_().permute({2, 0, 1}).unsqueeze(3);
  return {at::mul(result.out, share).to(result.out.scalar_type()), all};
}

// The gradient of a sink is minus its softmax probability times sum(dout * out) of the row, summed over rows.
void CoreAttention::add_sink_gradient(const at::Tensor& dout, const CoreResult& result) const {
  const at::Tensor common = at::mul(to_wide(result.out), dout).sum(3).permute({1, 2, 0});
  const at::Tensor share = (sink_scores(result.logsumexp) - result.logsumexp).exp_();
  const at::Tensor gradient = at::mul(share, common).sum(at::IntArrayRef({0, 2})).neg_();
  sinks_->accumulate([gradient](at::Tensor& main_grad) { main_grad.add_(gradient); });
}

Input CoreAttention::forward(const Input& q, const Input& k, const Input& v, const CorePositions& positions,
                             const Microbatch& batch, CoreSaved* saved) const {
  const at::NoGradGuard no_grad;
  const int64_t s_q = q.x.size(0), s_k = k.x.size(0), b = q.x.size(1);
  MPX_ASSERT(q.x.sizes() == at::IntArrayRef({s_q, b, spec_.heads, spec_.head_dim}) &&
                 k.x.sizes() == at::IntArrayRef({s_k, b, spec_.groups, spec_.head_dim}) &&
                 v.x.sizes() == at::IntArrayRef({s_k, b, spec_.groups, spec_.v_head_dim}),
             "core attention got q ", q.x.sizes(), ", k ", k.x.sizes(), ", v ", v.x.sizes());
  const int64_t width = spec_.heads * spec_.v_head_dim;
  const CoreResult result = compute({q.x, k.x, v.x}, positions, batch);
  const at::Tensor out = result.out.reshape({s_q, b, width});
  if (saved == nullptr) return out;
  if (!saving_.recomputes(SavePoint::core_attn)) {
    *saved = {saving_.keep(q),
              saving_.keep(k),
              saving_.keep(v),
              saving_.keep(out),
              saving_.keep(result.logsumexp),
              positions,
              batch};
    return out;
  }
  const auto recomputed = std::make_shared<RecomputedAttention>(
      RecomputedAttention{saving_.keep(q), saving_.keep(k), saving_.keep(v), positions, batch, {}});
  const Saved recomputed_out = Saved::recomputed([this, recomputed, s_q, b, width] {
    const CoreResult second = compute({recomputed->q.get(), recomputed->k.get(), recomputed->v.get()},
                                      recomputed->positions, recomputed->batch);
    recomputed->logsumexp = second.logsumexp;
    return second.out.reshape({s_q, b, width});
  });
  const Saved sums = Saved::recomputed([recomputed_out, recomputed] {
    recomputed_out.get();
    return std::move(recomputed->logsumexp);
  });
  *saved = {recomputed->q, recomputed->k, recomputed->v, recomputed_out, sums, positions, batch};
  return {out, recomputed_out};
}

CoreInputs CoreAttention::backward(const at::Tensor& dout, const CoreSaved& saved) const {
  const at::NoGradGuard no_grad;
  const CoreCall call{spec_for(saved.batch), saved.positions, saved.batch};
  const CoreInputs in{saved.q.get(), saved.k.get(), saved.v.get()};
  const std::vector<int64_t> sizes{in.q.size(0), in.q.size(1), spec_.heads, spec_.v_head_dim};
  const CoreResult result{saved.out.get().view(sizes), saved.logsumexp.get()};
  const at::Tensor dy = dout.reshape(sizes);
  if (sinks_) add_sink_gradient(dy, result);
  return needs_exchange(call) ? context_attention_backward(dy, in, result, call)
                              : attend_backward(dy, in, result, call);
}

}  // namespace metroplex::nn

#include "nn/core_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "nn/blocked_attention.h"
#include "nn/fused_attention.h"

namespace metroplex::nn {
namespace {

// [s, b, heads, d] -> [b, heads, s, d]
at::Tensor heads_first(const at::Tensor& x) { return x.permute({1, 2, 0, 3}); }
at::Tensor sequence_first(const at::Tensor& x) { return x.permute({2, 0, 1, 3}); }

// One query behind all keys, as generation asks.
bool sees_all(const CoreInputs& in, const CoreSpec& spec) {
  return in.q.size(0) == 1 && !spec.queries.rows.defined() && !spec.keys.rows.defined() &&
         spec.queries.first >= spec.keys.first + in.k.size(0) - 1;
}

// Whether libtorch's operator of a GPU can do it without a mask in memory.
bool fuses(const CoreInputs& in, const CoreSpec& spec, const Microbatch& batch) {
  if (!spec.target.gpu() || !fused_on_gpu(in.q)) return false;
  if (spec.dropout.active(batch) || batch.document_ids.defined()) return false;
  return sees_all(in, spec) || plain_causal(in, spec);
}

}  // namespace

at::Tensor core_attention(const CoreInputs& in, const CoreSpec& spec, const Microbatch& batch, CoreSaved* saved) {
  const at::NoGradGuard no_grad;
  at::Tensor out, logsumexp;
  if (fuses(in, spec, batch)) {
    std::tie(out, logsumexp) = fused_attention(spec.target, {heads_first(in.q), heads_first(in.k), heads_first(in.v)},
                                               plain_causal(in, spec));
    out = sequence_first(out);
  } else {
    std::tie(out, logsumexp) = blocked_attention(in, spec, batch);
  }
  const at::Tensor result = out.reshape({in.q.size(0), in.q.size(1), -1});
  if (saved != nullptr) *saved = {in, result.view(in.q.sizes()), logsumexp};
  return result;
}

CoreInputs core_attention_backward(const at::Tensor& dout, const CoreSpec& spec, const Microbatch& batch,
                                   const CoreSaved& saved) {
  const at::NoGradGuard no_grad;
  const CoreInputs& in = saved.in;
  const at::Tensor dy = dout.reshape(in.q.sizes());
  if (!fuses(in, spec, batch)) return blocked_attention_backward(dy, spec, batch, saved);
  const FusedGradients d =
      fused_attention_backward(spec.target, {heads_first(in.q), heads_first(in.k), heads_first(in.v)},
                               {heads_first(saved.out), saved.logsumexp, heads_first(dy)}, plain_causal(in, spec));
  return {sequence_first(d.q), sequence_first(d.k), sequence_first(d.v)};
}

}  // namespace metroplex::nn

#include "nn/core_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "nn/fused_attention.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

// [s, b, heads, d] -> [b, heads, s, d]
at::Tensor heads_first(const at::Tensor& x) { return x.permute({1, 2, 0, 3}); }
at::Tensor sequence_first(const at::Tensor& x) { return x.permute({2, 0, 1, 3}); }

bool plain_causal(const CoreInputs& in, const CoreSpec& spec, const Microbatch& batch) {
  return !batch.document_ids.defined() && !spec.queries.rows.defined() && !spec.keys.rows.defined() &&
         spec.queries.first == spec.keys.first && in.q.size(0) == in.k.size(0);
}

// [n] int64.
at::Tensor positions(const SequenceRows& rows, int64_t n, const at::Tensor& x) {
  return rows.rows.defined() ? rows.rows : at::arange(rows.first, rows.first + n, x.options().dtype(at::kLong));
}

// [queries, keys] bool: the key is behind the query.
at::Tensor behind(const CoreInputs& in, const CoreSpec& spec) {
  const int64_t queries = in.q.size(0), keys = in.k.size(0);
  if (!spec.queries.rows.defined() && !spec.keys.rows.defined()) {
    return at::ones({queries, keys}, in.q.options().dtype(at::kBool)).triu_(spec.queries.first - spec.keys.first + 1);
  }
  return positions(spec.keys, keys, in.k).unsqueeze(0) > positions(spec.queries, queries, in.q).unsqueeze(1);
}

// Columns of [b, whole s] numbers.
at::Tensor of_rows(const at::Tensor& ids, const SequenceRows& rows, int64_t n) {
  return rows.rows.defined() ? select_rows(ids, 1, rows.rows) : ids.narrow(1, rows.first, n);
}

bool sees_all(const CoreInputs& in, const CoreSpec& spec) {
  return in.q.size(0) == 1 && !spec.queries.rows.defined() && !spec.keys.rows.defined();
}

// [b or 1, 1, s_q, s_k] bool, true = hidden; undefined when every query sees every key.
at::Tensor hidden_positions(const CoreInputs& in, const CoreSpec& spec, const Microbatch& batch) {
  const int64_t queries = in.q.size(0), keys = in.k.size(0);
  at::Tensor hidden;
  if (!sees_all(in, spec)) hidden = behind(in, spec).view({1, 1, queries, keys});
  if (batch.document_ids.defined()) {
    const at::Tensor ids = batch.document_ids;
    const int64_t whole = spec.keys.rows.defined() ? spec.keys.whole : spec.keys.first + keys;
    MPX_CHECK(ids.size(1) == whole, "nn", "document_ids cover ", ids.size(1), " positions, the attention sees ",
              whole);
    const at::Tensor of_queries = of_rows(ids, spec.queries, queries), of_keys = of_rows(ids, spec.keys, keys);
    const at::Tensor other = of_queries.unsqueeze(2).ne(of_keys.unsqueeze(1)).unsqueeze(1);
    hidden = hidden.defined() ? hidden.bitwise_or(other) : other;
  }
  return hidden;
}

at::Tensor additive(const at::Tensor& hidden, at::ScalarType dtype) {
  if (!hidden.defined()) return {};
  return at::zeros(hidden.sizes(), hidden.options().dtype(dtype))
      .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

// Whether the fused operator of the device can do it. On a GPU it takes no mask but the causal one.
bool fuses(const CoreInputs& in, const CoreSpec& spec, const Microbatch& batch) {
  if (spec.plain || spec.dropout.active(batch)) return false;
  if (!spec.target.gpu()) return true;
  const bool unmasked = sees_all(in, spec) && !batch.document_ids.defined();
  return fused_on_gpu(in.q) && (unmasked || plain_causal(in, spec, batch));
}

FusedMask fused_mask(const CoreInputs& in, const CoreSpec& spec, const Microbatch& batch) {
  FusedMask mask;
  mask.causal = plain_causal(in, spec, batch);
  if (!mask.causal) mask.additive = additive(hidden_positions(in, spec, batch), in.q.scalar_type());
  return mask;
}

// q as [b, g, r s_q, d] where r = n / g heads share keys, and back.
at::Tensor by_group(const at::Tensor& x, int64_t groups) {
  const at::Tensor first = heads_first(x);
  return first.reshape({x.size(1), groups, x.size(2) / groups * x.size(0), x.size(3)});
}

// A mask is a function of the key's place in the whole sequence: keys that are not the whole in its order take theirs
// from a mask that is.
void drop(at::Tensor& probabilities, const CoreSpec& spec, const Microbatch& batch) {
  const ProbabilityPlace place{spec.first_head, spec.queries};
  if (!spec.keys.rows.defined()) return dropout_probabilities(probabilities, spec.dropout, place, batch);
  std::vector<int64_t> sizes = probabilities.sizes().vec();
  sizes.back() = spec.keys.whole;
  at::Tensor factors = at::ones(sizes, probabilities.options());
  dropout_probabilities(factors, spec.dropout, place, batch);
  probabilities.mul_(select_rows(factors, factors.dim() - 1, spec.keys.rows));
}

at::Tensor product(const cuda::Target& target, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = at::matmul(a, b);
  const double flops = 2.0 * static_cast<double>(out.numel()) * static_cast<double>(a.size(-1));
  cuda::issued(target, {"bmm", {&a, &b}, {&out}, {}, flops});
  return out;
}

struct PlainShape {
  int64_t b, n, queries, keys;
};

at::Tensor plain_forward(const CoreInputs& in, const CoreSpec& spec, const Microbatch& batch, CoreSaved* saved) {
  const int64_t groups = in.k.size(2);
  const PlainShape shape{in.q.size(1), in.q.size(2), in.q.size(0), in.k.size(0)};
  const at::Tensor q = by_group(to_wide(in.q), groups), k = heads_first(to_wide(in.k)),
                   v = heads_first(to_wide(in.v));
  at::Tensor p = product(spec.target, q, k.transpose(2, 3)).mul_(1.0 / std::sqrt(static_cast<double>(in.q.size(3))));
  p = p.view({shape.b, shape.n, shape.queries, shape.keys});
  const at::Tensor hidden = hidden_positions(in, spec, batch);
  if (hidden.defined()) p.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  p = at::softmax(p, -1);
  if (hidden.defined()) p.masked_fill_(hidden.all(-1, true), 0.0);
  if (saved != nullptr) saved->probabilities = p;
  if (spec.dropout.active(batch)) {
    p = p.clone();
    drop(p, spec, batch);
  }
  return product(spec.target, p.view({shape.b, groups, -1, shape.keys}), v)
      .view({shape.b, shape.n, shape.queries, in.q.size(3)});
}

CoreInputs plain_backward(const at::Tensor& dout, const CoreSpec& spec, const Microbatch& batch,
                          const CoreSaved& saved) {
  const CoreInputs& in = saved.in;
  const int64_t groups = in.k.size(2), n = in.q.size(2), b = in.q.size(1), queries = in.q.size(0),
                keys = in.k.size(0);
  const at::Tensor q = by_group(to_wide(in.q), groups), k = heads_first(to_wide(in.k)),
                   v = heads_first(to_wide(in.v));
  const at::Tensor dy = by_group(to_wide(dout), groups), p = saved.probabilities;
  at::Tensor dropped = p;
  at::Tensor dp = product(spec.target, dy, v.transpose(2, 3)).view({b, n, queries, keys});
  if (spec.dropout.active(batch)) {
    dropped = p.clone();
    drop(dropped, spec, batch);
    drop(dp, spec, batch);
  }
  const at::Tensor dv = product(spec.target, dropped.view({b, groups, -1, keys}).transpose(2, 3), dy);
  at::Tensor ds =
      at::_softmax_backward_data(dp, p, -1, p.scalar_type()).mul_(1.0 / std::sqrt(static_cast<double>(in.q.size(3))));
  ds = ds.view({b, groups, -1, keys});
  const at::Tensor dq = product(spec.target, ds, k).view({b, n, queries, in.q.size(3)}),
                   dk = product(spec.target, ds.transpose(2, 3), q);
  const at::ScalarType dtype = in.q.scalar_type();
  return {sequence_first(dq).to(dtype), sequence_first(dk).to(dtype), sequence_first(dv).to(dtype)};
}

}  // namespace

at::Tensor core_attention(const CoreInputs& in, const CoreSpec& spec, const Microbatch& batch, CoreSaved* saved) {
  const at::NoGradGuard no_grad;
  at::Tensor out, logsumexp;
  if (saved != nullptr) saved->in = in;
  if (fuses(in, spec, batch)) {
    std::tie(out, logsumexp) = fused_attention(spec.target, {heads_first(in.q), heads_first(in.k), heads_first(in.v)},
                                               fused_mask(in, spec, batch));
  } else {
    out = plain_forward(in, spec, batch, saved).to(in.q.scalar_type());
  }
  const at::Tensor result = sequence_first(out).reshape({in.q.size(0), in.q.size(1), -1});
  if (saved != nullptr) {
    saved->logsumexp = logsumexp;
    saved->out = result.view({in.q.size(0), in.q.size(1), in.q.size(2), in.q.size(3)});
  }
  return result;
}

CoreInputs core_attention_backward(const at::Tensor& dout, const CoreSpec& spec, const Microbatch& batch,
                                   const CoreSaved& saved) {
  const at::NoGradGuard no_grad;
  const CoreInputs& in = saved.in;
  const at::Tensor dy = dout.reshape(in.q.sizes());
  if (!saved.logsumexp.defined()) return plain_backward(dy, spec, batch, saved);
  const FusedGradients d = fused_attention_backward(
      spec.target, {heads_first(in.q), heads_first(in.k), heads_first(in.v)},
      {heads_first(saved.out), saved.logsumexp, heads_first(dy)}, fused_mask(in, spec, batch));
  return {sequence_first(d.q), sequence_first(d.k), sequence_first(d.v)};
}

}  // namespace metroplex::nn

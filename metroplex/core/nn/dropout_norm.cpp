#include "nn/dropout_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <memory>

#include "nn/autograd_node.h"

namespace metroplex::nn {
namespace {

struct SumNormSaved {
  Norm* norm;
  BiasDropoutAddSaved sum;
  Saved h;
  NormSaved statistics;  // without x
};

// h = residual + dropout(x + bias) and normed = norm(h) are computed in one pass over memory. Backward uses their
// gradients dh and dy (all [s (/tp), b, hidden]) in one pass too. nn::attach creates nodes with one output, so there
// are two nodes: N of normed, whose only input is h, and H of h.
//   x, residual -> H -> h -> other readers      engine order in backward: other readers and N in any order, then H
//                        `-> N -> normed
// The engine runs a node after all nodes that read its output, so N runs before H. N stores dy in `stored_dy` and
// returns no gradient for h; H then has both dy and dh. MissingGradient::call makes H run even if nothing else reads
// h and no dh arrives.
using StoredGradient = std::shared_ptr<at::Tensor>;

at::Tensor defer_gradient(const at::Tensor& normed, const at::Tensor& h, const StoredGradient& stored_dy) {
  return attach(normed, {h}, [stored_dy](const at::Tensor& dy) -> Gradients {
    *stored_dy = dy;
    return {at::Tensor()};
  });
}

Gradients backward(const SumNormSaved& saved, const at::Tensor& dy, const at::Tensor& dh) {
  if (!dy.defined() && !dh.defined()) return {at::Tensor(), at::Tensor()};
  if (!dy.defined()) return {bias_dropout_add_backward(dh, saved.sum), dh};
  NormSaved norm = saved.statistics;
  norm.x = saved.h.get();
  const Norm::SumGradients gradients = saved.norm->backward(dy, dh, norm, saved.sum);
  return {gradients.dx, gradients.dresidual};
}

}  // namespace

ResidualAndNorm bias_dropout_add_norm(const at::Tensor& x_sbh, const at::Tensor& residual,
                                      const BiasDropoutAddNorm& how, const Microbatch& batch) {
  const BiasDropoutAddOperands sum = sum_operands(x_sbh, residual, how.add.bias);
  SumNormSaved saved{
      how.norm, {how.add.bias, hidden_mask(x_sbh, how.add, batch), x_sbh.scalar_type(), how.add.key.target}, {}, {}};
  const at::Tensor normed = how.norm->apply(sum, saved.sum.mask, &saved.statistics);
  saved.statistics.x = at::Tensor();
  if (!at::GradMode::is_enabled()) return {sum.out, normed};
  saved.h = how.saving.keep(sum.out);
  const auto stored_dy = std::make_shared<at::Tensor>();
  const at::Tensor h = attach(
      sum.out, {x_sbh, residual},
      [saved, stored_dy](const at::Tensor& dh) { return backward(saved, *stored_dy, dh); }, MissingGradient::call);
  Input out = defer_gradient(normed, h, stored_dy);
  if (how.saving.recomputes(SavePoint::norm))
    out.recomputed = Saved::recomputed([norm = how.norm, x = saved.h] { return norm->apply(x.get(), nullptr); });
  return {h, out};
}

ResidualAndNorm fork_sum(const at::Tensor& sum) {
  if (!at::GradMode::is_enabled()) return {sum, sum};
  const auto stored_dy = std::make_shared<at::Tensor>();
  const at::Tensor residual = attach(
      sum.detach(), {sum},
      [stored_dy](const at::Tensor& dh) -> Gradients {
        const at::Tensor dy = std::move(*stored_dy);
        if (dy.defined() && dh.defined()) dy.add_(dh);
        return {dy.defined() ? dy : dh};
      },
      MissingGradient::call);
  keep_gradient_type(residual);
  return {residual, defer_gradient(sum.detach(), residual, stored_dy)};
}

ResidualAndNorm sum_and_norm(const at::Tensor& h, Norm& norm, const SavePolicy& saving) {
  NormSaved statistics;
  const at::Tensor normed = norm.apply(h, &statistics);
  if (!at::GradMode::is_enabled()) return {h, normed};
  statistics.x = at::Tensor();
  const Saved saved_h = saving.keep(h);
  const auto stored_dy = std::make_shared<at::Tensor>();
  const at::Tensor residual = attach(
      h.detach(), {h},
      [&norm, saved_h, statistics, stored_dy](const at::Tensor& dh) -> Gradients {
        const at::Tensor dy = std::move(*stored_dy);
        if (!dy.defined()) return {dh};
        NormSaved whole = statistics;
        whole.x = saved_h.get();
        return {norm.backward(dy, whole, dh)};
      },
      MissingGradient::call);
  Input out = defer_gradient(normed, residual, stored_dy);
  if (saving.recomputes(SavePoint::norm))
    out.recomputed = Saved::recomputed([&norm, saved_h] { return norm.apply(saved_h.get(), nullptr); });
  return {residual, out};
}

}  // namespace metroplex::nn

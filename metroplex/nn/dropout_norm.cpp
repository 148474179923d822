#include "nn/dropout_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <memory>

#include "comm/autograd_node.h"
#include "nn/linear.h"

namespace metroplex::nn {
namespace {

struct SumNormSaved {
  Norm* norm;
  BiasDropoutAddSaved sum;
  Saved h;
  NormSaved statistics;  // without x
};

// h = residual + dropout(x + bias) and normed = norm(h), all [s (/tp), b, h], are made in one pass over memory, and
// their gradients dh and dy are to be used in one pass too. Two nodes stand in for the node with two outputs that
// autograd does not have here: that of normed, whose only input is h, and that of h. The engine runs a node after all
// that depend on its output, so the node of normed always runs first: it stores dy here and returns no gradient. The
// node of h then finds dy beside its own dh; WithoutGradient::call has it run even where nothing else reads h and no
// dh comes.
using Waiting = std::shared_ptr<at::Tensor>;

at::Tensor leaving_gradient(const at::Tensor& normed, const at::Tensor& h, const Waiting& waiting) {
  return comm::attach(normed, {h}, [waiting](const at::Tensor& dy) -> comm::Gradients {
    *waiting = dy;
    return {at::Tensor()};
  });
}

comm::Gradients backward(const SumNormSaved& saved, const at::Tensor& dy, const at::Tensor& dh) {
  if (!dy.defined() && !dh.defined()) return {at::Tensor(), at::Tensor()};
  if (!dy.defined()) return {bias_dropout_add_backward(dh, saved.sum), dh};
  NormSaved norm = saved.statistics;
  norm.x = saved.h.get();
  const Norm::SumGradients gradients = saved.norm->backward(dy, dh, norm, saved.sum);
  if (saved.sum.bias != nullptr) accumulate_bias_gradient(saved.sum.target, *saved.sum.bias, gradients.dx);
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
  const auto waiting = std::make_shared<at::Tensor>();
  const at::Tensor h = comm::attach(
      sum.out, {x_sbh, residual}, [saved, waiting](const at::Tensor& dh) { return backward(saved, *waiting, dh); },
      comm::WithoutGradient::call);
  Input out = leaving_gradient(normed, h, waiting);
  if (how.saving.recomputes(SavePoint::norm))
    out.again = Saved::recomputed([norm = how.norm, x = saved.h] { return norm->apply(x.get(), nullptr); });
  return {h, out};
}

ResidualAndNorm sum_and_norm(const at::Tensor& h, Norm& norm, const SavePolicy& saving) {
  NormSaved statistics;
  const at::Tensor normed = norm.apply(h, &statistics);
  if (!at::GradMode::is_enabled()) return {h, normed};
  statistics.x = at::Tensor();
  const Saved kept = saving.keep(h);
  const auto waiting = std::make_shared<at::Tensor>();
  const at::Tensor residual = comm::attach(
      h.detach(), {h},
      [&norm, kept, statistics, waiting](const at::Tensor& dh) -> comm::Gradients {
        const at::Tensor dy = std::move(*waiting);
        if (!dy.defined()) return {dh};
        NormSaved whole = statistics;
        whole.x = kept.get();
        const at::Tensor dx = norm.backward(dy, whole);
        if (dh.defined()) dx.add_(dh);
        return {dx};
      },
      comm::WithoutGradient::call);
  Input out = leaving_gradient(normed, residual, waiting);
  if (saving.recomputes(SavePoint::norm))
    out.again = Saved::recomputed([&norm, kept] { return norm.apply(kept.get(), nullptr); });
  return {residual, out};
}

}  // namespace metroplex::nn

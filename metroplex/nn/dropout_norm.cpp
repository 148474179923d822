#include "nn/dropout_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <memory>

#include "comm/autograd_node.h"
#include "nn/linear.h"

namespace metroplex::nn {
namespace {

struct Kept {
  Norm* norm;
  BiasDropoutAddSaved sum;
  Saved h;
  NormSaved statistics;  // without x
};

comm::Gradients backward(const Kept& kept, const at::Tensor& dy, const at::Tensor& dh) {
  if (!dy.defined() && !dh.defined()) return {at::Tensor(), at::Tensor()};
  if (!dy.defined()) return {bias_dropout_add_backward(dh, kept.sum), dh};
  NormSaved saved = kept.statistics;
  saved.x = kept.h.get();
  const Norm::SumGradients gradients = kept.norm->backward(dy, dh, saved, kept.sum);
  if (kept.sum.bias != nullptr) accumulate_bias_gradient(kept.sum.target, *kept.sum.bias, gradients.dx);
  return {gradients.dx, gradients.dresidual};
}

}  // namespace

ResidualAndNorm bias_dropout_add_norm(const at::Tensor& x_sbh, const at::Tensor& residual,
                                      const BiasDropoutAddNorm& how, const Microbatch& batch) {
  const BiasDropoutAddOperands sum = sum_operands(x_sbh, residual, how.add.bias);
  Kept kept{
      how.norm, {how.add.bias, hidden_mask(x_sbh, how.add, batch), x_sbh.scalar_type(), how.add.key.target}, {}, {}};
  const at::Tensor normed = how.norm->apply(sum, kept.sum.mask, &kept.statistics);
  kept.statistics.x = at::Tensor();
  if (!at::GradMode::is_enabled()) return {sum.out, normed};
  kept.h = how.saving.keep(sum.out);
  // The norm's node points at that of h, so the engine runs it first: it leaves its gradient here and hands on none.
  const auto waiting = std::make_shared<at::Tensor>();
  const at::Tensor h = comm::attach(
      sum.out, {x_sbh, residual}, [kept, waiting](const at::Tensor& dh) { return backward(kept, *waiting, dh); },
      comm::WithoutGradient::call);
  Input out = comm::attach(normed, {h}, [waiting](const at::Tensor& dy) -> comm::Gradients {
    *waiting = dy;
    return {at::Tensor()};
  });
  if (how.saving.remakes(Leaf::norm))
    out.again = Saved::remade([norm = how.norm, x = kept.h] { return norm->apply(x.get(), nullptr); });
  return {h, out};
}

}  // namespace metroplex::nn

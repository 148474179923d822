#include "nn/loss.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "nn/autograd_node.h"
#include "comm/collectives.h"
#include "kernels/cross_entropy.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

struct RowResult {
  at::Tensor loss, logsumexp;  // [rows]
};

struct Smoothing {
  double weight = 0, per_class = 0;  // s, and s / K
};

Smoothing make_smoothing(const CrossEntropySpec& spec) {
  const auto k = static_cast<double>(spec.vocab_size);
  if (spec.label_smoothing <= 0) return {};
  const double s = spec.label_smoothing * k / (k - 1);
  return {s, s / k};
}

RowResult row_losses(const at::Tensor& logits, const at::Tensor& local_targets, const CrossEntropySpec& spec) {
  const kernels::LogitsShape shape{logits.size(0), logits.size(1), spec.shard.valid_rows};
  const auto options = logits.options().dtype(acc_type(logits.scalar_type()));
  const at::Tensor maximum = at::empty({shape.rows}, options);
  const Smoothing smooth = make_smoothing(spec);
  const at::Tensor sums = at::zeros({3, shape.rows}, options);  // exp_sum, target logit, sum of logits
  dispatch_element(logits.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using A = kernels::Wide<T>;
    A* const base = elements<A>(sums);
    const kernels::RowStatistics<A> out{elements<A>(maximum), base, base + shape.rows,
                                        smooth.weight > 0 ? base + 2 * shape.rows : nullptr};
    device::launch(spec.target,
                   {"cross_entropy_statistics",
                    {&logits, &local_targets, &sums},
                    {&maximum, &sums},
                    {{"columns", shape.columns}}},
                   kernels::cross_entropy_statistics<T>, kernels::cross_entropy_statistics_cuda<T>,
                   elements<T>(logits), static_cast<const int64_t*>(local_targets.const_data_ptr()), out, shape);
  });
  const at::Tensor whole_maximum = maximum.clone();
  comm::all_reduce(whole_maximum, spec.tp, comm::ReduceOp::max);
  if (spec.tp.size() > 1) sums[0].mul_(at::exp(maximum - whole_maximum));
  comm::all_reduce(sums, spec.tp);
  RowResult result;
  result.logsumexp = sums[0].log().add_(whole_maximum);
  result.loss = result.logsumexp - sums[1];
  if (smooth.weight > 0) {  // mean(log p) = mean(x) - logsumexp
    const at::Tensor mean_log = sums[2] / static_cast<double>(spec.vocab_size) - result.logsumexp;
    result.loss = result.loss * (1 - smooth.weight) - mean_log * smooth.weight;
  }
  return result;
}

struct RowGradient {
  at::Tensor logsumexp, dloss;  // [rows]; dloss of any shape
};

void write_logit_gradient(const at::Tensor& logits, const at::Tensor& local_targets, const RowGradient& rows,
                          const CrossEntropySpec& spec) {
  const kernels::LogitsShape shape{logits.size(0), logits.size(1), spec.shard.valid_rows};
  const Smoothing smooth = make_smoothing(spec);
  const at::Tensor scale = rows.dloss.to(rows.logsumexp.scalar_type()).contiguous();
  dispatch_element(logits.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using A = kernels::Wide<T>;
    const kernels::CrossEntropyGradient<A> gradient{elements<A>(rows.logsumexp), elements<A>(scale),
                                                    1 - smooth.weight, smooth.per_class};
    device::launch(spec.target,
                   {"cross_entropy_backward",
                    {&logits, &local_targets, &rows.logsumexp, &scale},
                    {&logits},
                    {{"columns", shape.columns}, {"on_target", gradient.on_target}, {"uniform", gradient.uniform}}},
                   kernels::cross_entropy_backward<T>, kernels::cross_entropy_backward_cuda<T>, elements<T>(logits),
                   static_cast<const int64_t*>(local_targets.const_data_ptr()), gradient, shape);
  });
}

}  // namespace

at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                        const CrossEntropySpec& spec) {
  MPX_ASSERT(logits.size(-1) == spec.shard.local_rows && logits.numel() == targets.numel() * spec.shard.local_rows,
             "cross entropy of ", logits.numel(), " logits, ", targets.numel(), " targets and ",
             spec.shard.local_rows, " local rows of the vocabulary: the sizes do not fit");
  RowResult rows;
  at::Tensor data, local_targets;
  {
    const at::NoGradGuard no_grad;
    data = logits.detach().contiguous().view({-1, spec.shard.local_rows});
    local_targets = (targets - spec.shard.begin).contiguous().view({-1});
    rows = row_losses(data, local_targets, spec);
  }
  return attach(rows.loss.view(targets.sizes()), {logits},
                [data, local_targets, logsumexp = rows.logsumexp, spec,
                 sizes = logits.sizes().vec()](const at::Tensor& dloss) -> Gradients {
                  const at::NoGradGuard no_grad;
                  write_logit_gradient(data, local_targets, {logsumexp, dloss}, spec);
                  return {data.view(sizes)};
                });
}

at::Tensor masked_sum(const at::Tensor& losses, const at::Tensor& mask) {
  at::Tensor sum;
  {
    const at::NoGradGuard no_grad;
    sum = (losses.detach().to(at::kDouble) * mask).sum().to(losses.scalar_type());
  }
  return attach(sum, {losses}, [mask, dtype = losses.scalar_type()](const at::Tensor& dy) -> Gradients {
    const at::NoGradGuard no_grad;
    return {(mask * dy).to(dtype)};
  });
}

}  // namespace metroplex::nn

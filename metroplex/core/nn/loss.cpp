#include "nn/loss.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "nn/autograd_node.h"
#include "comm/collectives.h"
#include "kernels/cross_entropy.h"
#include "nn/matmul.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

struct RowResult {
  at::Tensor loss, logsumexp;  // [rows]
};

// Statistics of rows over the columns of this rank.
struct RowSums {
  at::Tensor maximum;  // [rows]
  at::Tensor sums;     // [3, rows]: exp_sum, target logit, sum of logits
};

RowSums make_row_sums(int64_t rows, const at::Tensor& like) {
  const auto options = like.options().dtype(acc_type(like.scalar_type()));
  return {at::empty({rows}, options), at::zeros({3, rows}, options)};
}

struct Smoothing {
  double weight = 0, per_class = 0;  // s, and s / K
};

Smoothing make_smoothing(const CrossEntropySpec& spec) {
  const auto k = static_cast<double>(spec.vocab_size);
  if (spec.label_smoothing <= 0) return {};
  const double s = spec.label_smoothing * k / (k - 1);
  return {s, s / k};
}

// Writes the statistics of the rows from `begin` on. logits [n, local rows of the vocabulary], local_targets [n].
void put_row_sums(const RowSums& rows, int64_t begin, const at::Tensor& logits, const at::Tensor& local_targets,
                  const CrossEntropySpec& spec) {
  const kernels::LogitsShape shape{logits.size(0), logits.size(1), spec.shard.valid_rows};
  const at::Tensor maximum = rows.maximum.narrow(0, begin, shape.rows), sums = rows.sums.narrow(1, begin, shape.rows);
  const int64_t stride = sums.stride(0);
  dispatch_element(logits.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using A = kernels::Wide<T>;
    A* const base = elements<A>(sums);
    const kernels::RowStatistics<A> out{elements<A>(maximum), base, base + stride,
                                        make_smoothing(spec).weight > 0 ? base + 2 * stride : nullptr};
    device::launch(spec.target,
                   {"cross_entropy_statistics",
                    {&logits, &local_targets, &sums},
                    {&maximum, &sums},
                    {{"columns", shape.columns}}},
                   kernels::cross_entropy_statistics<T>, kernels::cross_entropy_statistics_cuda<T>,
                   elements<T>(logits), static_cast<const int64_t*>(local_targets.const_data_ptr()), out, shape);
  });
}

// Combines the statistics of all ranks. Collective over tp.
RowResult row_losses(const RowSums& rows, const CrossEntropySpec& spec) {
  const auto& [maximum, sums] = rows;
  const at::Tensor whole_maximum = maximum.clone();
  comm::all_reduce(whole_maximum, spec.tp, comm::ReduceOp::max);
  if (spec.tp.size() > 1) sums[0].mul_(at::exp(maximum - whole_maximum));
  comm::all_reduce(sums, spec.tp);
  RowResult result;
  result.logsumexp = sums[0].log().add_(whole_maximum);
  result.loss = result.logsumexp - sums[1];
  const Smoothing smooth = make_smoothing(spec);
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
    const RowSums sums = make_row_sums(data.size(0), data);
    put_row_sums(sums, 0, data, local_targets, spec);
    rows = row_losses(sums, spec);
  }
  return attach(rows.loss.view(targets.sizes()), {logits},
                [data, local_targets, logsumexp = rows.logsumexp, spec,
                 sizes = logits.sizes().vec()](const at::Tensor& dloss) -> Gradients {
                  const at::NoGradGuard no_grad;
                  write_logit_gradient(data, local_targets, {logsumexp, dloss}, spec);
                  return {data.view(sizes)};
                });
}

SoftCap apply_softcap(const at::Tensor& x, double cap) {
  const at::Tensor share = (x.detach() / cap).tanh_();
  return {share, share * cap};
}

at::Tensor softcap_gradient(const at::Tensor& dy, const at::Tensor& share) { return dy * (1 - share * share); }

LossChunks::LossChunks(Param& weight, CrossEntropySpec spec, const LayerContext& context)
    : weight_(weight),
      spec_(std::move(spec)),
      wide_logits_(context.precision.output_logit_dtype == config::OutputLogitDtype::fp32),
      sp_(context.sp),
      tp_reduce_(context.tp_reduce),
      saving_(context.saving) {}

struct LossChunks::SavedRows {
  at::Tensor x_local, local_targets, logsumexp, dloss;
};

LossChunks::Logits LossChunks::make_logits(const at::Tensor& rows) const {
  const at::Tensor matrix = weight_.data.t();
  Logits out{
      wide_logits_ ? wide_linear_product(spec_.target, rows, matrix) : linear_product(spec_.target, rows, matrix),
      {}};
  if (divisor != 1) out.logits.div_(divisor);
  if (softcap > 0) {
    const SoftCap capped = apply_softcap(out.logits, softcap);
    out = {capped.capped, capped.share};
  }
  return out;
}

at::Tensor LossChunks::forward(const Input& in, const at::Tensor& targets) const {
  RowResult rows;
  at::Tensor local_targets;
  {
    const at::NoGradGuard no_grad;
    local_targets = (targets - spec_.shard.begin).contiguous().view({-1});
    const at::Tensor x = comm::all_gather(in.x.detach(), 0, sp_).flatten(0, 1);
    const RowSums sums = make_row_sums(x.size(0), x);
    for (int64_t begin = 0; begin < x.size(0); begin += tokens) {
      const int64_t count = std::min(tokens, x.size(0) - begin);
      put_row_sums(sums, begin, make_logits(x.narrow(0, begin, count)).logits, local_targets.narrow(0, begin, count),
                   spec_);
    }
    rows = row_losses(sums, spec_);
  }
  if (!at::GradMode::is_enabled()) return rows.loss.view(targets.sizes());
  return attach(
      rows.loss.view(targets.sizes()), {in.x},
      [this, local_targets, logsumexp = rows.logsumexp, x = saving_.keep(in)](const at::Tensor& dloss) -> Gradients {
        const at::NoGradGuard no_grad;
        const SavedRows saved{x.get(), local_targets, logsumexp, dloss.contiguous().view({-1})};
        std::vector<int64_t> sizes = saved.x_local.sizes().vec();
        sizes[0] *= sp_.size();
        const at::Tensor dx = at::empty(sizes, saved.x_local.options());
        // The weight action of a pipeline schedule computes the logits once more.
        const bool separate = weight_.frozen || weight_.deferred != nullptr;
        if (separate) backward_chunks(saved, dx, nullptr, false);
        weight_.accumulate_or_write(
            [this, saved, dx = separate ? at::Tensor() : dx](at::Tensor& main_grad, bool adds) {
              backward_chunks(saved, dx, &main_grad, adds);
            });
        comm::all_reduce(dx, tp_reduce_);
        return {comm::reduce_scatter(dx, 0, sp_)};
      });
}

// Computes the gradients of the input [s, b, h] and of the weight; skips an undefined dx and a null main_grad.
// Collective over sp.
void LossChunks::backward_chunks(const SavedRows& saved, const at::Tensor& dx, at::Tensor* main_grad,
                                 bool adds) const {
  const at::Tensor x = comm::all_gather(saved.x_local, 0, sp_).flatten(0, 1);
  for (int64_t begin = 0; begin < x.size(0); begin += tokens) {
    const int64_t count = std::min(tokens, x.size(0) - begin);
    const auto chunk = [&](const at::Tensor& rows) { return rows.narrow(0, begin, count); };
    auto [dlogits, share] = make_logits(chunk(x));
    write_logit_gradient(dlogits, chunk(saved.local_targets), {chunk(saved.logsumexp), chunk(saved.dloss)}, spec_);
    if (share.defined()) dlogits = softcap_gradient(dlogits, share);
    if (divisor != 1) dlogits.div_(divisor);
    dlogits = dlogits.to(weight_.scalar_type());
    if (dx.defined()) chunk(dx.flatten(0, 1)).copy_(linear_product(spec_.target, dlogits, weight_.data));
    if (main_grad != nullptr)
      put_linear_weight_gradient(spec_.target, *main_grad, dlogits, chunk(x), adds || begin > 0);
  }
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

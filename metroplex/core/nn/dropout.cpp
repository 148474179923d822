#include "nn/dropout.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/error.h"
#include "nn/autograd_node.h"
#include "kernels/dropout.h"
#include "nn/linear.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

const at::Tensor& get_counters(const Microbatch& batch, int64_t samples, at::Device device) {
  const at::Tensor& counters = batch.counters.samples;
  MPX_ASSERT(counters.defined() && counters.numel() == samples && counters.scalar_type() == at::kLong &&
                 counters.is_contiguous() && counters.device().type() == device.type(),
             "dropout needs the counters of the microbatch's samples on its own device");
  return counters;
}

// Returns the mask of `num_rows` rows; the caller sets which rows of a sample they are.
DropoutMask make_mask(int64_t num_rows, int64_t width, int64_t num_samples, const DropoutKey& key,
                      const Microbatch& batch) {
  DropoutMask mask;
  mask.shape.width = width;
  mask.shape.num_rows = num_rows;
  if (!key.active(batch)) return mask;
  mask.counters = get_counters(batch, num_samples, key.target.memory());
  mask.shape.rows.counters = static_cast<const int64_t*>(mask.counters.const_data_ptr());
  mask.shape.rows.num_samples = num_samples;
  mask.shape.key = random_key(key.seed, key.layer, key.site);
  mask.shape.probability = key.probability;
  return mask;
}

// Applies the mask to the rows `rows` of every whole sequence of `whole` rows.
void choose_rows(DropoutMask& mask, const at::Tensor& rows, int64_t whole) {
  mask.rows = rows;
  mask.shape.rows.chosen = static_cast<const int64_t*>(rows.const_data_ptr());
  mask.shape.rows.num_chosen = rows.numel();
  mask.shape.rows.whole = whole;
}

template <class In, class Out>
void run_typed(const device::Target& target, const BiasDropoutAddOperands& operands, const DropoutMask& mask) {
  const kernels::DropoutShape& shape = mask.shape;
  device::launch(target,
                 {"bias_dropout_add",
                  {&operands.x, &operands.bias, &operands.residual, &mask.counters, &mask.rows},
                  {&operands.out},
                  {{"key", shape.key}, {"probability", shape.probability}, {"first_row", shape.rows.first_row}}},
                 kernels::bias_dropout_add<In, Out>, kernels::bias_dropout_add_cuda<In, Out>,
                 operands.elements_as<In, Out>(), shape);
}

void run(const device::Target& target, const BiasDropoutAddOperands& operands, const DropoutMask& mask) {
  const at::ScalarType in = operands.x.scalar_type(), out = operands.out.scalar_type();
  dispatch_element(in == at::kFloat ? out : in, [&](auto zero) {
    using T = decltype(zero);
    if (in == out) {
      run_typed<T, T>(target, operands, mask);
    } else if constexpr (kernels::kIsHalf<T>) {
      in == at::kFloat ? run_typed<float, T>(target, operands, mask) : run_typed<T, float>(target, operands, mask);
    } else {
      MPX_ASSERT(false, "bias_dropout_add has no kernel from ", c10::toString(in), " to ", c10::toString(out));
    }
  });
}

}  // namespace

DropoutMask hidden_mask(const at::Tensor& x_sbh, const BiasDropoutAdd& how, const Microbatch& batch) {
  const int64_t width = x_sbh.size(-1);
  DropoutMask mask = make_mask(x_sbh.numel() / std::max<int64_t>(1, width), width, x_sbh.size(1), how.key, batch);
  const Positions rows = sequence_positions(batch);
  if (mask.counters.defined() && rows.rows.defined()) {
    choose_rows(mask, rows.rows.narrow(0, how.location.first_row, x_sbh.size(0)), rows.whole);
  } else {
    mask.shape.rows.first_row = how.location.first_row;
  }
  return mask;
}

DropoutMask probability_mask(const std::array<int64_t, 4>& sizes_bnqk, const DropoutKey& key,
                             const ProbabilityLocation& location, const Microbatch& batch) {
  const auto [b, heads, queries, keys] = sizes_bnqk;
  DropoutMask mask = make_mask(b * heads * queries, keys, b, key, batch);
  if (!mask.counters.defined()) return mask;
  mask.shape.rows.sample_major = true;
  const bool chosen = location.queries.rows.defined();
  if (chosen) choose_rows(mask, location.queries.rows, location.queries.whole);
  mask.shape.rows.first_row = location.first_head * (chosen ? location.queries.whole : queries);
  return mask;
}

// The kernel counts rows of `width` elements: column shard `shard` of row r is row r * num_shards + shard.
DropoutMask columns_mask(at::IntArrayRef sizes, const DropoutKey& key, const ColumnsLocation& location,
                         const Microbatch& batch) {
  DropoutMask mask = make_mask(sizes[0] * sizes[1], sizes[2], sizes[1], key, batch);
  if (!mask.counters.defined()) return mask;
  const Positions rows = sequence_positions(batch);
  mask.shape.rows.first_row = location.shard;
  if (rows.rows.defined()) {
    const at::Tensor own = rows.rows.narrow(0, location.first_row, sizes[0]);
    choose_rows(mask, location.num_shards == 1 ? own : own.mul(location.num_shards),
                rows.whole * location.num_shards);
  } else if (location.num_shards == 1) {
    mask.shape.rows.first_row = location.first_row;
  } else {
    const at::Tensor first = at::full({1}, location.first_row * location.num_shards, mask.counters.options());
    choose_rows(mask, first, location.num_shards);
  }
  return mask;
}

at::Tensor with_mask(const device::Target& target, const at::Tensor& x, const DropoutMask& mask) {
  const at::Tensor whole = x.contiguous(), out = at::empty(whole.sizes(), whole.options());
  run(target, {whole, {}, {}, out}, mask);
  return out;
}

BiasDropoutAddOperands sum_operands(const at::Tensor& x_sbh, const at::Tensor& residual, const Param* bias) {
  const at::NoGradGuard no_grad;
  MPX_ASSERT(x_sbh.is_contiguous(),
             "bias_dropout_add overwrites its input, which must be a contiguous result that no one else reads");
  BiasDropoutAddOperands sum{x_sbh.detach(), {}, {}, {}};
  if (bias != nullptr) sum.bias = bias->data;
  if (residual.defined()) sum.residual = residual.detach().contiguous();
  const bool same = !residual.defined() || residual.scalar_type() == x_sbh.scalar_type();
  sum.out = same ? x_sbh.detach() : at::empty(x_sbh.sizes(), sum.residual.options());
  return sum;
}

SequenceOffset sequence_offset(const at::Tensor& x_sbh, const comm::Group& sp) {
  return {x_sbh.size(0) * sp.index()};
}

at::Tensor bias_dropout_add(const at::Tensor& x_sbh, const at::Tensor& residual, const BiasDropoutAdd& how,
                            const Microbatch& batch) {
  const BiasDropoutAddSaved saved{how.bias, hidden_mask(x_sbh, how, batch), x_sbh.scalar_type(), how.key.target};
  const BiasDropoutAddOperands sum = sum_operands(x_sbh, residual, how.bias);
  run(how.key.target, sum, saved.mask);
  return attach(sum.out, {x_sbh, residual}, [saved](const at::Tensor& dy) -> Gradients {
    return {bias_dropout_add_backward(dy, saved), dy};
  });
}

at::Tensor bias_dropout_add_backward(const at::Tensor& dy, const BiasDropoutAddSaved& saved) {
  const at::NoGradGuard no_grad;
  const bool has_dropout = saved.mask.shape.probability > 0;
  at::Tensor dx = has_dropout ? at::empty(dy.sizes(), dy.options().dtype(saved.x_type)) : dy.to(saved.x_type);
  if (has_dropout) run(saved.target, {dy.contiguous(), {}, {}, dx}, saved.mask);
  if (saved.bias != nullptr) accumulate_bias_gradient(saved.target, *saved.bias, dx);
  return dx;
}

}  // namespace metroplex::nn

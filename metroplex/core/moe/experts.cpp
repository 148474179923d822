#include "moe/experts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "moe/grouped_library.h"
#include "moe/paged_stash.h"
#include "nn/autograd_node.h"
#include "config/experts.h"
#include "device/launch_point.h"
#include "nn/matmul.h"
#include "nn/param_init.h"
#include "nn/rounded_weight.h"
#include "nn/stored_weight.h"
#include "nn/wide.h"

namespace metroplex::moe {
namespace {

using kernels::GroupedOp;
using topology::Axis;

}  // namespace

std::vector<topology::DimShard> stack_cuts(const StackSizes& sizes, const ExpertContext& at, int cut_dim) {
  std::vector<topology::DimShard> cuts = {topology::even_shard(0, Axis::ep, sizes.experts, at.ep, at.ep_rank())};
  if (cut_dim < 0) return cuts;
  topology::DimShard cut = topology::even_shard(cut_dim, Axis::etp, sizes.width, at.etp, at.etp_rank());
  if (sizes.gated && cut_dim == 1) {
    const topology::RowRange gate = cut.ranges.front();
    cut.ranges.push_back({gate.size, sizes.width + gate.global, gate.size});
  }
  cuts.push_back(cut);
  return cuts;
}

Experts::Experts(const std::string& name, const config::Model& model, const nn::LayerContext& context,
                 const ExpertContext& at)
    : target_(context.target),
      saving_(context.saving),
      grouped_(model.moe_grouped_gemm),
      scales_input_(model.moe_apply_probs_on_input),
      first_of_etp_(at.etp_rank() == 0),
      first_row_(int64_t{at.experts.index()} << 32),
      slots_(at.slots),
      fill_(config::expert_fill(model, at.etp, at.ep)),
      buffers_(at.buffers),
      stash_(at.stash),
      products_(context.target, at.local_groups(model.num_moe_experts), -1, fill_),
      rounding1_(context, name + ".linear_fc1", {{{}, {at.inner}, {at.inner}}}),
      rounding2_(context, name + ".linear_fc2", {{{at.inner}, {at.inner}, {}}}),
      rows_(nn::activation_spec(model, context.target)) {
  const StackSizes sizes{model.num_moe_experts, config::expert_ffn_width(model), model.gated_linear_unit};
  const int64_t hidden = config::expert_row_width(model);
  const int64_t inner = sizes.gated ? 2 * sizes.width : sizes.width;
  const auto make = [&](const char* tensor, std::vector<int64_t> shape, int cut_dim, nn::Init init) {
    topology::Placement placement;
    placement.grid = topology::Grid::expert;
    placement.cuts = stack_cuts(sizes, at, cut_dim);
    placement.role = init == nn::Init::zeros ? topology::Role::bias : topology::Role::weight;
    placement.regions = topology::expert_regions(name, sizes.experts, tensor);
    return nn::make_param({name + "." + tensor, std::move(shape), std::move(placement), init}, context);
  };
  fc1_ = make("linear_fc1.weight", {sizes.experts, inner, hidden}, 1, nn::Init::normal);
  fc2_ = make("linear_fc2.weight", {sizes.experts, hidden, sizes.width}, 2, nn::Init::scaled_normal);
  for (auto [weight, rounding] : {std::pair(&fc1_, &rounding1_), std::pair(&fc2_, &rounding2_)}) {
    weight->operand_history =
        rounding->make_history(weight->name, context.dtype, at.holders, sizes.experts, stack_cuts(sizes, at, -1));
  }
  rounding1_.set_gradient_columns(fc1_.local_shape[1], {});
  rounding2_.set_gradient_columns(fc2_.local_shape[1], {});
  if (at.etp > 1) {
    rounding1_.check_shards(fc1_.name, {fc2_.local_shape[2]});
    rounding2_.check_shards(fc2_.name, {fc2_.local_shape[2]});
  }
  for (nn::Param* weight : {&fc1_, &fc2_}) nn::store_as_codes(*weight, context, at.inner);
  for (auto [weight, rounding] : {std::pair(&fc1_, &rounding1_), std::pair(&fc2_, &rounding2_)}) {
    const auto form = rounding->encodes_groups(nn::Operand::input)      ? nn::KeptForm::codes
                      : multiplies_bf16_codes(*rounding, context.dtype) ? nn::KeptForm::bf16_codes
                                                                        : nn::KeptForm::values;
    nn::keep_rounded(*weight, *rounding, context, form);
  }
  if (stash_) {
    const int64_t activated = saving_.recomputes(nn::SavePoint::expert_activation) ? 0 : fc2_.local_shape[2];
    const int64_t width = hidden + fc1_.local_shape[1] + activated;
    number_ = stash_->join(name, width * static_cast<int64_t>(c10::elementSize(context.dtype)));
  }
  adapters1_ = make_adapters(name, config::fc1_boxes(model, sizes.width), true, context, at);
  adapters2_ = make_adapters(name, {config::whole_layer("down_proj", hidden)}, false, context, at);
  if (!model.add_bias_linear) return;
  bias1_ = make("linear_fc1.bias", {sizes.experts, inner}, 1, nn::Init::zeros);
  bias2_ = make("linear_fc2.bias", {sizes.experts, hidden}, -1, nn::Init::zeros);
}

namespace {

template <class Body>
void each_group(const std::vector<int64_t>& counts, const Body& body) {
  int64_t first = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] > 0) body(static_cast<int64_t>(e), first, counts[e]);
    first += counts[e];
  }
}

at::Tensor of_group(const GroupedWeights& weights, int64_t e) {
  const int64_t home = weights.home.size(0);
  return e < home ? weights.home.select(0, e) : weights.replicas.select(0, e - home);
}

// Returns the biases of all groups; they are small enough to concatenate.
at::Tensor biases(const std::optional<nn::Param>& home, const at::Tensor& replicas) {
  if (!home) return {};
  return replicas.defined() ? at::cat({home->data, replicas}) : home->data;
}

void plain_product(const device::Target& target, at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  at::mm_out(out, a, b);
  const double flops =
      2.0 * static_cast<double>(a.size(0)) * static_cast<double>(a.size(1)) * static_cast<double>(b.size(1));
  device::issued(target, {"mm", {&a, &b}, {&out}, {}, flops});
}

}  // namespace

Experts::Counts Experts::counts_of(const ExpertRows& in) const {
  Counts counts{.device = in.counts, .counter = in.counter};
  if (grouped_) {
    counts.ends = products_.with_ends(in.counts, in.x.size(0), in.x.scalar_type()).ends;
    return counts;
  }
  const int64_t experts = in.counts.numel(), all = in.x.size(0);
  if (target_.meta) {  // counts are unknown: assume an even load
    const auto rows = static_cast<int64_t>(fill_ * static_cast<double>(all));
    for (int64_t e = 0; e < experts; ++e) counts.host.push_back(rows * (e + 1) / experts - rows * e / experts);
    return counts;
  }
  const at::Tensor host = device::read_on_host(target_, in.counts);
  int64_t left = all;
  for (int64_t e = 0; e < experts; ++e) {
    counts.host.push_back(std::min(host.const_data_ptr<int64_t>()[e], left));
    left -= counts.host.back();
  }
  return counts;
}

at::Tensor Experts::input(const at::Tensor& x, const Factors& factors, const Counts& counts) const {
  return scales_input_ ? rows_.scale(x, factors.input, counts.device) : x;
}

at::Tensor Experts::activation(const at::Tensor& x, const Factors& factors, const Counts& counts,
                               const at::Tensor& replica_bias) const {
  return rows_.activation(x, biases(bias1_, replica_bias), factors.probs, counts.device);
}

at::Tensor Experts::product(GroupedOp op, const at::Tensor& rows, const GroupedWeights& weights,
                            const Counts& counts) const {
  const bool forward = op == GroupedOp::forward;
  if (grouped_) return products_.rows(op, rows, weights, counts.of_groups());
  const at::Tensor out = at::empty({rows.size(0), weights.home.size(forward ? 1 : 2)}, rows.options());
  each_group(counts.host, [&](int64_t e, int64_t first, int64_t n) {
    const at::Tensor weight = of_group(weights, e);
    plain_product(target_, out.narrow(0, first, n), rows.narrow(0, first, n), forward ? weight.t() : weight);
  });
  return out;
}

namespace {

// Replicas are counted by their owners.
GroupedWeights rounded_weights(const nn::OperandRounding& rounding, const nn::Param& home, const at::Tensor& replicas,
                               nn::SumOver sum, bool counts) {
  return {nn::round_weight(rounding, home, sum, counts),
          replicas.defined() ? rounding.round(replicas, nn::Operand::weight, sum, {.groups = {replicas.size(0), {}}})
                             : replicas};
}

nn::Codes encoded_weights(const nn::OperandRounding& rounding, const nn::Param& home, const at::Tensor& replicas,
                          nn::SumOver sum, bool counts) {
  nn::Codes codes = nn::encode_weight(rounding, home, sum, counts);
  if (!replicas.defined()) return codes;
  const nn::Codes others = rounding.encode(replicas, nn::Operand::weight, sum, {.groups = {replicas.size(0), {}}});
  codes.codes = at::cat({codes.codes, others.codes}), codes.decode = at::cat({codes.decode, others.decode});
  return codes;
}

}  // namespace

bool Experts::multiplies_bf16_codes(const nn::OperandRounding& rounding, at::ScalarType of_rows) const {
  return grouped_ && rounding.has_bf16_codes(of_rows);
}

GroupedWeights Experts::bf16_weights(const nn::OperandRounding& rounding, const ExpertWeights& weights,
                                     nn::SumOver sum, bool trains) const {
  const nn::Codes home = nn::encode_weight(rounding, weights.home, sum, trains, true);
  GroupedWeights all(home.codes.view(weights.home.local_shape), {}, home.decode);
  if (!weights.replicas.defined()) return all;
  const nn::Codes others = rounding.encode(weights.replicas, nn::Operand::weight, sum,
                                           {.groups = {weights.replicas.size(0), {}}, .bf16_codes = true});
  all.replicas = others.codes.view(weights.replicas.sizes()), all.factors = at::cat({home.decode, others.decode});
  return all;
}

GroupedWeights Experts::bf16_rows(const nn::OperandRounding& rounding, const at::Tensor& rows, nn::Operand operand,
                                  const nn::RowGroups& groups, bool trains) const {
  const nn::Codes codes =
      rounding.encode(rows, operand, nn::SumOver::columns, {.groups = groups, .counts = trains, .bf16_codes = true});
  return {codes.codes, {}, codes.decode};
}

GroupedWeights Experts::gradient_codes(const nn::OperandRounding& rounding, const at::Tensor& dy,
                                       const Counts& counts) const {
  const bool as_8_bits = rounding.encodes_groups(nn::Operand::gradient) && target_.gpu();
  if (!multiplies_bf16_codes(rounding, dy.scalar_type()) || as_8_bits || !rounding.rounds_weight_gradients())
    return at::Tensor();
  return bf16_rows(rounding, dy, nn::Operand::gradient, {counts.device.numel(), counts.device}, true);
}

at::Tensor Experts::code_product(const nn::OperandRounding& rounding, GroupedOp op, const at::Tensor& rows,
                                 const ExpertWeights& weights, const Counts& counts, bool trains) const {
  const bool forward = op == GroupedOp::forward;
  const nn::Codes left = rounding.encode(rows, forward ? nn::Operand::input : nn::Operand::gradient,
                                         nn::SumOver::columns, {{counts.device.numel(), counts.device}, trains}),
                  right = encoded_weights(rounding, weights.home, weights.replicas,
                                          forward ? nn::SumOver::columns : nn::SumOver::rows, forward && trains);
  if (!target_.gpu()) {
    const at::IntArrayRef sizes = weights.home.local_shape;
    const at::ScalarType type = rounding.result_type(rows.scalar_type());
    const at::Tensor stack = right.values().to(type).view({counts.device.numel(), sizes[1], sizes[2]});
    return product(op, left.values().to(type), stack, counts).to(rows.scalar_type());
  }
  const at::Tensor ends = counts.ends.defined() ? counts.ends : group_ends(target_, counts.device, rows.size(0));
  return nn::scaled_grouped_product(target_, nn::grouped_codes(left, right, forward), ends, fill_, weights.home.name)
      .to(rows.scalar_type());
}

at::Tensor Experts::rounded_product(const nn::OperandRounding& rounding, GroupedOp op, const at::Tensor& rows,
                                    const ExpertWeights& weights, const Counts& counts, bool trains,
                                    const GroupedWeights& codes) const {
  const bool forward = op == GroupedOp::forward;
  const nn::Operand operand = forward ? nn::Operand::input : nn::Operand::gradient;
  const nn::RowGroups groups{counts.device.numel(), counts.device};
  const nn::SumOver sum = forward ? nn::SumOver::columns : nn::SumOver::rows;
  const bool encodes = rounding.encodes_groups(operand);
  if (multiplies_bf16_codes(rounding, rows.scalar_type()) && !(encodes && target_.gpu())) {
    return products_.rows(op, codes.home.defined() ? codes : bf16_rows(rounding, rows, operand, groups, trains),
                          bf16_weights(rounding, weights, sum, forward && trains), counts.of_groups());
  }
  if (encodes) return code_product(rounding, op, rows, weights, counts, trains);
  const nn::RoundOptions options{
      groups, trains, forward ? nn::DropoutMask() : rounding.positions(rows.size(0), first_row_, counts.counter)};
  const at::Tensor rounded = rounding.round(rows, operand, nn::SumOver::columns, options);
  return product(op, rounded, rounded_weights(rounding, weights.home, weights.replicas, sum, forward && trains),
                 counts)
      .to(rows.scalar_type());
}

at::Tensor Experts::rounded_weight_gradient(const nn::OperandRounding& rounding, nn::Param& weight,
                                            const at::Tensor& dy, const at::Tensor& x, const Counts& counts,
                                            const GroupedWeights& dy_codes) const {
  if (!rounding.rounds_weight_gradients()) return weight_gradient(weight, dy, x, counts);
  const nn::RowGroups groups{counts.device.numel(), counts.device};
  if (multiplies_bf16_codes(rounding, x.scalar_type())) {
    const bool encoded = dy_codes.home.defined();
    return weight_gradient(weight, encoded ? dy_codes : bf16_rows(rounding, dy, nn::Operand::gradient, groups, false),
                           bf16_rows(rounding, x, nn::Operand::input, groups, false), counts);
  }
  const nn::RoundOptions of_rows{groups, false, rounding.positions(dy.size(0), first_row_, counts.counter)};
  return weight_gradient(weight, rounding.round(dy, nn::Operand::gradient, nn::SumOver::rows, of_rows),
                         rounding.round(x, nn::Operand::input, nn::SumOver::rows, {groups}), counts);
}

at::Tensor* Experts::replicas_of(const nn::Param& home, at::Tensor& gradient) const {
  MPX_ASSERT(slots_ == 0 || home.deferred == nullptr, "gradients of ", home.name, "'s replicas are deferred");
  return slots_ > 0 ? &gradient : nullptr;
}

// Accumulates once for the whole stack, so that an expert without rows also counts its use.
at::Tensor Experts::weight_gradient(nn::Param& weight, const GroupedWeights& dy, const GroupedWeights& x,
                                    const Counts& counts) const {
  at::Tensor of_replicas;
  weight.accumulate_or_write(
      [this, dy, x, counts, replicas = replicas_of(weight, of_replicas)](at::Tensor& main_grad, bool adds) {
        const std::array<int64_t, 3> sizes_of_replicas = {slots_, main_grad.size(1), main_grad.size(2)};
        // Rounded operands are wider than half-precision gradients, which a grouped product cannot add to.
        const bool narrows = grouped_ && nn::is_half(main_grad) && !nn::is_half(x.home);
        const at::Tensor sums = narrows ? at::empty(main_grad.sizes(), x.home.options()) : main_grad;
        GroupedWeights gradients(sums);
        if (slots_ > 0) {
          gradients.replicas =
              grouped_ ? at::empty(sizes_of_replicas, sums.options()) : at::zeros(sizes_of_replicas, sums.options());
        }
        const auto finish = [&] {
          if (narrows) nn::put_product(target_, main_grad, sums, adds);
          if (slots_ > 0) *replicas = gradients.replicas.to(main_grad.scalar_type());
        };
        if (grouped_) {
          products_.run(GroupedOp::weight_gradient, dy, x, gradients, counts.of_groups(), adds && !narrows);
          return finish();
        }
        if (!adds) main_grad.zero_();
        each_group(counts.host, [&](int64_t e, int64_t first, int64_t n) {
          at::Tensor gradient = of_group(gradients, e);
          nn::put_linear_weight_gradient(target_, gradient, dy.home.narrow(0, first, n), x.home.narrow(0, first, n),
                                         true);
        });
        finish();
      });
  return of_replicas;
}

at::Tensor Experts::bias_gradient(nn::Param& bias, const at::Tensor& dy, const at::Tensor& probs,
                                  const Counts& counts) const {
  at::Tensor of_replicas;
  bias.accumulate(
      [this, dy, probs, device = counts.device, replicas = replicas_of(bias, of_replicas)](at::Tensor& main_grad) {
        if (slots_ == 0) return rows_.add_sums(main_grad, dy, probs, device);
        const int64_t home = main_grad.size(0);
        const at::Tensor sums = at::zeros({home + slots_, main_grad.size(1)}, main_grad.options());
        rows_.add_sums(sums, dy, probs, device);
        main_grad.add_(sums.narrow(0, 0, home));
        *replicas = sums.narrow(0, home, slots_);
      });
  return of_replicas;
}

at::Tensor Experts::forward(const ExpertRows& in, const Replicas& given, bool is_recompute) {
  const ReplicaWeights& replicas = given.weights;
  MPX_ASSERT(replicas.defined() == (slots_ > 0), "replicas for ", slots_, " slots");
  const bool differentiates = at::GradMode::is_enabled();
  const at::NoGradGuard no_grad;
  const at::Tensor x = in.x.detach().contiguous(), probs = in.probs.detach().to(nn::acc_type(x.scalar_type()));
  const Counts counts = counts_of(in);
  const Factors factors{scales_input_ ? probs : at::Tensor(), scales_input_ ? at::Tensor() : probs};
  if (given.under_way != nullptr) given.under_way->join_fc1();
  const at::Tensor scaled = input(x, factors, counts);
  const at::Tensor inner =
      rounded_product(rounding1_, GroupedOp::forward, scaled, {fc1_, replicas.fc1}, counts, differentiates);
  add_adapters(adapters1_, inner, scaled, counts);
  const at::Tensor activated = activation(inner, factors, counts, replicas.bias1);
  if (given.under_way != nullptr) given.under_way->join_fc2();
  const at::Tensor y =
      rounded_product(rounding2_, GroupedOp::forward, activated, {fc2_, replicas.fc2}, counts, differentiates);
  add_adapters(adapters2_, y, activated, counts);
  // Results are partial sums over etp, so one etp rank adds the bias.
  if (bias2_ && first_of_etp_) rows_.add_bias(y, biases(bias2_, replicas.bias2), factors.probs, counts.device);
  if (!differentiates) return y;
  const at::AutoGradMode grad(true);
  Kept kept{{}, {}, {}, factors, counts, keep(given), given.bring_home};
  keep_rows(kept, x, inner, activated, is_recompute);
  return nn::attach(
      y, {in.x, in.probs},
      [this, kept = std::move(kept), type = in.probs.scalar_type()](const at::Tensor& dy) -> nn::Gradients {
        const at::NoGradGuard no_grad;
        nn::Gradients gradients = backward(dy.contiguous(), kept);
        gradients[1] = gradients[1].to(type);
        return gradients;
      });
}

Experts::KeptReplicas Experts::keep(const Replicas& replicas) const {
  const ReplicaWeights& w = replicas.weights;
  const auto keep = [&](const at::Tensor& x) { return x.defined() ? saving_.keep(x) : nn::Saved(); };
  if (!replicas.again) return {keep(w.fc1), keep(w.fc2), keep(w.bias1), keep(w.bias2)};
  return {nn::Saved::recomputed([again = replicas.again] { return again->fc1(); }),
          nn::Saved::recomputed([again = replicas.again] { return again->fc2(); }), keep(w.bias1), keep(w.bias2)};
}

void Experts::keep_rows(Kept& kept, const at::Tensor& x, const at::Tensor& inner, const at::Tensor& activated,
                        bool is_recompute) const {
  const bool recomputes = saving_.recomputes(nn::SavePoint::expert_activation);
  // A repeated step uses buffers of the received size, not pages.
  if (stash_ && !is_recompute && !(buffers_ && buffers_->repeats)) {
    std::vector<at::Tensor> rows{x, inner};
    if (!recomputes) rows.push_back(activated);
    std::vector<nn::Saved> paged = stash_->keep(rows, kept.counts.device, number_);
    kept.x = paged[0], kept.inner = paged[1];
    if (!recomputes) kept.activated = paged[2];
  } else {
    kept.inner = saving_.keep(inner);
    if (!fc1_.frozen || scales_input_ || trains(adapters1_)) kept.x = saving_.keep(x);
    if (!recomputes && (!fc2_.frozen || trains(adapters2_))) kept.activated = saving_.keep(activated);
  }
  if (!recomputes) return;
  kept.activated = nn::Saved::recomputed(
      [this, inner = kept.inner, factors = kept.factors, counts = kept.counts, replica_bias = kept.replicas.bias1] {
        return activation(inner.get(), factors, counts, replica_bias.get());
      });
}

nn::Gradients Experts::backward(const at::Tensor& dy, const Kept& kept) {
  const Counts& counts = kept.counts;
  const Factors& factors = kept.factors;
  const KeptReplicas& replicas = kept.replicas;
  const auto bring_home = [&](nn::Param& home, const at::Tensor& of_replicas) {
    if (slots_ > 0 && !home.frozen) kept.bring_home(home, of_replicas);
  };
  const at::Tensor dprobs = at::empty_like(scales_input_ ? factors.input : factors.probs);
  GroupedWeights codes = gradient_codes(rounding2_, dy, counts);
  at::Tensor gradient =
      rounded_product(rounding2_, GroupedOp::input_gradient, dy, {fc2_, replicas.fc2.get()}, counts, true, codes);
  const bool has_pages = stash_ && !saving_.recomputes(nn::SavePoint::expert_activation);  // get() frees them
  const at::Tensor activated = !fc2_.frozen || trains(adapters2_) || has_pages ? kept.activated.get() : at::Tensor();
  if (!fc2_.frozen)
    bring_home(fc2_,
               rounded_weight_gradient(rounding2_, fc2_, dy, activated, counts, std::exchange(codes, at::Tensor())));
  adapters_backward(adapters2_, gradient, dy, activated, counts);
  if (bias2_) bring_home(*bias2_, bias_gradient(*bias2_, dy, factors.probs, counts));
  gradient = rows_.activation_backward(gradient, kept.inner.get(), biases(bias1_, replicas.bias1.get()),
                                       factors.probs, counts.device, scales_input_ ? at::Tensor() : dprobs);
  if (bias2_ && first_of_etp_ && !scales_input_)
    rows_.add_bias_probs(dprobs, dy, biases(bias2_, replicas.bias2.get()), counts.device);
  if (bias1_) bring_home(*bias1_, bias_gradient(*bias1_, gradient, {}, counts));
  const at::Tensor x = kept.x.get();
  const at::Tensor scaled = !fc1_.frozen || trains(adapters1_) ? input(x, factors, counts) : at::Tensor();
  codes = gradient_codes(rounding1_, gradient, counts);
  if (!fc1_.frozen) bring_home(fc1_, rounded_weight_gradient(rounding1_, fc1_, gradient, scaled, counts, codes));
  const at::Tensor inner_gradient =
      std::exchange(gradient, rounded_product(rounding1_, GroupedOp::input_gradient, gradient,
                                              {fc1_, replicas.fc1.get()}, counts, true, codes));
  adapters_backward(adapters1_, gradient, inner_gradient, scaled, counts);
  if (scales_input_) gradient = rows_.scale_backward(gradient, x, factors.input, counts.device, dprobs);
  return {gradient, dprobs};
}

HomeWeights Experts::home() {
  const auto address = [](std::optional<nn::Param>& bias) { return bias ? &*bias : nullptr; };
  return {&fc1_, &fc2_, address(bias1_), address(bias2_)};
}

void Experts::collect_params(std::vector<nn::Param*>& params) {
  for (auto [weight, bias] : {std::pair(&fc1_, &bias1_), std::pair(&fc2_, &bias2_)}) {
    params.push_back(weight);
    if (*bias) params.push_back(&**bias);
  }
  for (std::vector<Adapter>* const adapters : {&adapters1_, &adapters2_}) {
    for (Adapter& adapter : *adapters) {
      params.push_back(&adapter.a);
      params.push_back(&adapter.b);
    }
  }
}

}  // namespace metroplex::moe

#include "nn/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "nn/autograd_node.h"
#include "comm/collectives.h"
#include "nn/matmul.h"
#include "nn/param_init.h"
#include "nn/rounded_weight.h"
#include "nn/stored_weight.h"

namespace metroplex::nn {
namespace {

struct PendingTensor {
  at::Tensor tensor;
  comm::Handle handle;
  at::Tensor source;  // must live until completion
  at::Tensor wait() {
    handle.wait();
    return tensor;
  }
};

PendingTensor start_gather(const at::Tensor& x, const comm::Group& sp) {
  if (sp.size() == 1) return {x, {}, {}};
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] *= sp.size();
  PendingTensor pending{at::empty(sizes, x.options()), {}, x.contiguous()};
  pending.handle = comm::all_gather_into_async(pending.tensor, pending.source, sp);
  return pending;
}

// Reduces x over both groups, one of which has size one: a reduce-scatter over sp, or an all-reduce.
PendingTensor start_reduce(const at::Tensor& x, const comm::Group& sp, const comm::Group& tp_reduce) {
  if (sp.size() == 1) return {x, comm::all_reduce_async(x, tp_reduce), {}};
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] /= sp.size();
  PendingTensor pending{at::empty(sizes, x.options()), {}, x};
  pending.handle = comm::reduce_scatter_into_async(pending.tensor, pending.source, sp);
  return pending;
}

topology::DimShard output_shard(const LinearSpec& spec, const comm::Group& tp) {
  const std::vector<int64_t> whole{spec.out_features};
  return topology::even_shards(0, topology::Axis::tp, spec.sections.empty() ? whole : spec.sections, tp.size(),
                               tp.index());
}

// Placement of <name>.weight [out, in] or <name>.bias [out], split over tp by output features.
topology::Placement output_placement(const LinearSpec& spec, const comm::Group& tp, topology::Role role) {
  const std::string name = spec.name + (role == topology::Role::bias ? ".bias." : ".weight.");
  topology::Placement placement{.cuts = {output_shard(spec, tp)}, .role = role, .regions = spec.regions};
  for (topology::Region& part : placement.regions) part.name.insert(0, name);
  return placement;
}

// In forward, codes for sums over columns can be gathered: none of their blocks has several rows. In backward, they
// are also needed for sums over rows, which all values have to share a factor for.
CodeGathers find_code_gathers(const std::string& name, LinearSplit split, const LayerContext& context) {
  const config::Precision& precision = context.precision;
  const config::Recipe recipe = precision.find_recipe(name);
  const bool encodes = recipe != config::Recipe::none && precision.fp8_products == config::Fp8Products::library;
  if (context.sp.size() == 1 || split == LinearSplit::none || !encodes) return {};
  return {split == LinearSplit::output, precision.fp8_wgrad && config::has_one_factor(recipe)};
}

at::Tensor gather_bytes(const at::Tensor& bytes, const comm::Group& sp) {
  return comm::all_gather(bytes.view(at::kByte), 0, sp).view(bytes.scalar_type());
}

// The codes of all rows, of which every member of sp has a part.
void gather_codes(Codes& codes, const comm::Group& sp) {
  codes.codes = gather_bytes(codes.codes, sp);
  if (codes.has_blocks()) codes.decode = gather_bytes(codes.decode, sp);
}

// The ranks that hold parts of an operand: of the weight over tp, of rows over sp and cp.
OperandRounding make_rounding(const std::string& name, LinearSplit split, const LayerContext& context,
                              const CodeGathers& gathers) {
  const comm::Group &tp = context.tp, &cp = context.cp;
  std::array<std::vector<comm::Group>, 3> shards;
  const auto at = [&](Operand operand) -> std::vector<comm::Group>& { return shards[static_cast<size_t>(operand)]; };
  at(Operand::input) = at(Operand::gradient) = {cp};
  if (split == LinearSplit::none) {
    at(Operand::input).push_back(context.sp), at(Operand::gradient).push_back(context.sp);
  } else {
    at(Operand::weight).push_back(tp);
    const bool splits_input = split == LinearSplit::input;
    at(splits_input ? Operand::input : Operand::gradient).push_back(tp);
    if (splits_input && gathers.backward) at(Operand::gradient).push_back(context.sp);
    if (!splits_input && gathers.forward) at(Operand::input).push_back(context.sp);
  }
  return {context, name, std::move(shards)};
}

OperandRounding make_head_rounding(const LayerContext& context) {
  if (!context.precision.fp8_output_proj) return {};
  return make_rounding("output_layer", LinearSplit::output, context, {});
}

void check_blocks(const OperandRounding& rounding, const Param& weight, const comm::Group& tp) {
  if (tp.size() == 1) return;
  std::vector<int64_t> sizes;
  for (const topology::DimShard& cut : weight.placement.cuts)
    for (const topology::RowRange& range : cut.ranges) sizes.push_back(range.size);
  rounding.check_shards(weight.name, sizes);
}

}  // namespace

void accumulate_weight_gradient(const device::Target& target, Param& weight, const at::Tensor& dy,
                                const at::Tensor& x) {
  weight.accumulate_or_write([target, dy, x](at::Tensor& main_grad, bool adds) {
    put_linear_weight_gradient(target, main_grad, dy, x, adds);
  });
}

void accumulate_bias_gradient(const device::Target& target, Param& bias, const at::Tensor& dy) {
  bias.accumulate_or_write(
      [target, dy](at::Tensor& main_grad, bool adds) { put_linear_bias_gradient(target, main_grad, dy, adds); });
}

Linear::Linear(const LinearSpec& spec, LinearSplit split, const LayerContext& context)
    : split_(split),
      sp_(context.sp),
      tp_reduce_(context.tp_reduce),
      target_(context.target),
      saving_(context.saving),
      skip_bias_add_(spec.skip_bias_add),
      skip_bias_gradient_(spec.skip_bias_gradient),
      adapters_({spec.name, spec.in_features, spec.adapters, split}, context),
      gathers_(adapters_.empty() ? find_code_gathers(spec.name, split, context) : CodeGathers()),
      rounding_(make_rounding(spec.name, split, context, gathers_)) {
  using topology::Role;
  const comm::Group& tp = context.tp;
  topology::Placement weight{.partial = context.sp_axes}, bias{.partial = context.sp_axes, .role = Role::bias};
  if (split == LinearSplit::output) {
    weight = output_placement(spec, tp, Role::weight);
    bias = output_placement(spec, tp, Role::bias);
  } else if (split == LinearSplit::input) {
    weight = {.cuts = {topology::even_shard(1, topology::Axis::tp, spec.in_features, tp.size(), tp.index())}};
  }
  const auto param = [&](const char* suffix, std::vector<int64_t> shape, topology::Placement placement, Init init) {
    return std::make_shared<Param>(
        make_param({spec.name + suffix, std::move(shape), std::move(placement), init}, context));
  };
  weight_ = param(".weight", {spec.out_features, spec.in_features}, std::move(weight), spec.init);
  check_blocks(rounding_, *weight_, tp);
  store_as_codes(*weight_, context, split == LinearSplit::none ? comm::Group() : tp);
  weight_->operand_history = rounding_.make_history(spec.name, context.dtype, context.tp_dp_cp);
  const bool sharded = split == LinearSplit::output && tp.size() > 1;
  rounding_.set_gradient_columns(
      spec.out_features, sharded ? weight_->placement.cuts.front().ranges : std::vector<topology::RowRange>());
  keep_rounded(*weight_, rounding_, context, rounding_.encodes() ? KeptForm::codes : KeptForm::values);
  if (spec.bias) bias_ = param(".bias", {spec.out_features}, std::move(bias), Init::zeros);
}

Linear::Linear(std::shared_ptr<Param> weight, const LayerContext& context)
    : split_(LinearSplit::output),
      sp_(context.sp),
      tp_reduce_(context.tp_reduce),
      target_(context.target),
      saving_(context.saving),
      rounding_(make_head_rounding(context)),
      wide_output_(context.precision.output_logit_dtype == config::OutputLogitDtype::fp32),
      weight_(std::move(weight)) {
  if (!rounding_.rounds()) return;
  check_blocks(rounding_, *weight_, context.tp);
  // Heads of multi-token prediction share the weight, and then its history and rounded values.
  if (weight_->operand_history) rounding_.share_history(weight_->operand_history);
  else weight_->operand_history = rounding_.make_history("output_layer", context.dtype, context.tp_dp_cp);
  if (weight_->rounded) return;
  keep_rounded(*weight_, rounding_, context, rounding_.encodes() ? KeptForm::codes : KeptForm::values);
  if (weight_->rounded) weight_->rounded->can_gather_codes = false;  // embedding and loss read the values
}

LinearRows Linear::rows(const Input& in, const Microbatch& batch) const {
  std::vector<int64_t> sizes = in.x.sizes().vec();
  const int64_t first_row = split_ == LinearSplit::none ? sizes[0] * sp_.index() : 0;
  if (split_ == LinearSplit::output) sizes[0] *= sp_.size();
  return {adapters_.rows(sizes, first_row, batch), rounding_.positions(sizes, first_row, batch)};
}

at::Tensor Linear::output(const at::Tensor& x, const at::Tensor& bias, bool trains, at::Tensor& x_magnitude) const {
  if (rounding_.encodes()) {
    MatrixCodes left = rounding_.encode_matrix(x, Operand::input, {.columns = true}, {.counts = trains});
    if (gathers_.forward) gather_codes(left.columns, sp_);
    x_magnitude = left.magnitude;
    const Codes right = encode_weight(rounding_, *weight_, SumOver::columns, trains);
    const at::Tensor out = multiply(left.columns, right, wide_output_ ? at::kFloat : x.scalar_type(), x);
    return bias.defined() ? out.add_(bias) : out;
  }
  const RoundOptions options{.counts = trains};
  const at::Tensor rounded = rounding_.round(x, Operand::input, SumOver::columns, options),
                   matrix = round_weight(rounding_, *weight_, SumOver::columns, trains).t();
  if (wide_output_) return wide_linear_product(target_, rounded, matrix);
  const at::Tensor same_type = bias.defined() ? bias.to(rounded.scalar_type()) : bias;
  return linear_product(target_, rounded, matrix, same_type).to(x.scalar_type());
}

MatrixCodes Linear::encode_and_gather(const at::Tensor& local, Operand operand, const RoundOptions& options) const {
  MatrixCodes made = rounding_.encode_matrix(local, operand, {.columns = true}, options);
  gather_codes(made.columns, sp_);
  return made;
}

MatrixCodes Linear::encode_gradient(const at::Tensor& dy, const DropoutMask& positions, bool rows) const {
  const RoundOptions options{.counts = true, .positions = positions};
  if (split_ != LinearSplit::input || !gathers_.backward)
    return rounding_.encode_matrix(dy, Operand::gradient, {.columns = true, .rows = rows}, options);
  MatrixCodes made = encode_and_gather(dy, Operand::gradient, options);
  if (rows) made.rows = transpose(target_, made.columns);
  return made;
}

// left right^T, with the leading dimensions of `like`, which may have only this rank's part of the first one.
at::Tensor Linear::multiply(const Codes& left, const Codes& right, at::ScalarType type,
                            const at::Tensor& like) const {
  std::vector<int64_t> sizes = like.sizes().vec();
  if (like.numel() > 0) sizes[0] = left.codes.size(0) * sizes[0] * sizes.back() / like.numel();
  sizes.back() = right.codes.size(0);
  return scaled_product(target_, left, right, type, weight_->name).view(sizes);
}

at::Tensor Linear::input_gradient(const at::Tensor& dy, const Codes& dy_codes, const DropoutMask& positions) const {
  if (rounding_.encodes())
    return multiply(dy_codes, encode_weight(rounding_, *weight_, SumOver::rows), dy.scalar_type(), dy);
  const RoundOptions options{.counts = true, .positions = positions};
  return linear_product(target_, rounding_.round(dy, Operand::gradient, SumOver::columns, options),
                        round_weight(rounding_, *weight_, SumOver::rows))
      .to(dy.scalar_type());
}

void Linear::put_weight_gradient(at::Tensor& gradient, const GradientOperands& operands, bool adds) const {
  const auto& [dy, x, positions, dy_codes, x_codes] = operands;
  if (!rounding_.rounds_weight_gradients()) return put_linear_weight_gradient(target_, gradient, dy, x, adds);
  if (rounding_.encodes()) {
    const auto encode = [&](const at::Tensor& matrix, Operand operand, const MatrixCodes& made) {
      if (made.rows.codes.defined()) return made.rows;
      const RoundOptions options{.positions = positions, .magnitude = made.magnitude};
      return rounding_.encode_matrix(matrix, operand, {.rows = true}, options).rows;
    };
    const Codes left = encode(dy, Operand::gradient, dy_codes), right = encode(x, Operand::input, x_codes);
    return put_scaled_product(target_, gradient, left, right, weight_->name, adds);
  }
  const RoundOptions options{.positions = positions};
  put_linear_weight_gradient(target_, gradient, rounding_.round(dy, Operand::gradient, SumOver::rows, options),
                             rounding_.round(x, Operand::input, SumOver::rows), adds);
}

at::Tensor Linear::forward(const Input& in, const LinearRows& rows) {
  at::Tensor out;
  at::Tensor x_magnitude;
  std::vector<AdapterValues> adapted;
  const bool trains = at::GradMode::is_enabled();
  {
    const at::NoGradGuard no_grad;
    Param* const bias = added_bias();
    const bool sums = split_ == LinearSplit::input, adds_bias = bias != nullptr && (sums || adapters_.scale_output());
    const bool gathers_values = split_ == LinearSplit::output && !gathers_.forward;
    const at::Tensor x = gathers_values ? comm::all_gather(in.x, 0, sp_) : in.x;
    out = output(x, bias != nullptr && !adds_bias ? bias->data : at::Tensor(), trains, x_magnitude);
    adapted = adapters_.add_outputs(out, x, weight_->data, rows.adapters);
    if (sums) {
      out = comm::reduce_scatter(out, 0, sp_);
      comm::all_reduce(out, tp_reduce_);
    }
    if (adds_bias) out.add_(bias->data);
  }
  if (!trains) return out;
  const std::vector<SavedAdapter> adapters_saved = adapters_.keep(adapted);
  const Saved saved = keeps_input() ? saving_.keep(in) : Saved();
  return attach(out, {in.x}, [this, saved, rows, adapters_saved, x_magnitude](const at::Tensor& dout) -> Gradients {
    const at::NoGradGuard no_grad;
    const at::Tensor dy_local = wide_output_ ? dout.to(weight_->scalar_type()) : dout;
    const bool gathers = split_ == LinearSplit::output, trains_weight = !weight_->frozen;
    const bool gathers_values = split_ == LinearSplit::input && !gathers_.backward;
    const at::Tensor dy =
        adapters_.unscale_gradients(gathers_values ? comm::all_gather(dy_local, 0, sp_) : dy_local, adapters_saved);
    const at::Tensor x_local = saved.get();
    // A deferred weight gradient keeps only this rank's rows and gathers them again.
    const bool gathers_again = weight_->deferred != nullptr && sp_.size() > 1 && adapters_.empty() &&
                               split_ != LinearSplit::none && trains_weight;
    GradientOperands operands{gathers_again ? dy_local : dy, {}, rows.gradients, {}, {{}, {}, x_magnitude}};
    PendingTensor input{x_local, {}, {}};
    Codes x_codes;
    if (gathers && x_local.defined() && !gathers_again) {
      if (gathers_.backward)
        x_codes =
            rounding_.encode_matrix(x_local, Operand::input, {.columns = true}, {.magnitude = x_magnitude}).columns;
      input = start_gather(gathers_.backward ? x_codes.codes.view(at::kByte) : x_local, sp_);
    }
    if (rounding_.encodes()) {
      const bool has_all_rows = gathers || !gathers_again;
      operands.dy_codes =
          encode_gradient(dy, rows.gradients, has_all_rows && trains_weight && rounding_.rounds_weight_gradients());
    }
    at::Tensor dx = input_gradient(dy, std::exchange(operands.dy_codes.columns, {}), rows.gradients);
    const auto dhidden = adapters_.add_input_gradients(dx, dy, rows.adapters);
    const at::Tensor x = input.wait();
    PendingTensor reduced = gathers ? start_reduce(dx, sp_, tp_reduce_) : PendingTensor{dx, {}, {}};
    if (x_codes.codes.defined()) {
      x_codes.codes = x.view(x_codes.codes.scalar_type());
      operands.x_codes.rows = transpose(target_, x_codes);
    } else {
      operands.x = x;
    }
    if (operands.dy_codes.rows.codes.defined()) operands.dy = at::Tensor();
    if (gathers_again) gather_and_accumulate(operands);
    else if (trains_weight) accumulate(operands);
    if (Param* const bias = added_bias(); bias != nullptr && !skip_bias_gradient_)
      accumulate_bias_gradient(target_, *bias, dy_local);
    adapters_.accumulate({dy, x, adapters_saved, dhidden}, rows.adapters);
    return {reduced.wait()};
  });
}

void Linear::accumulate(const GradientOperands& operands) const {
  weight_->accumulate_or_write(
      [this, operands](at::Tensor& main_grad, bool adds) { put_weight_gradient(main_grad, operands, adds); });
}

void Linear::gather_and_accumulate(const GradientOperands& local) const {
  weight_->accumulate_or_write([this, local](at::Tensor& main_grad, bool adds) {
    GradientOperands operands = local;
    const bool splits_x = split_ == LinearSplit::output;
    const Operand operand = splits_x ? Operand::input : Operand::gradient;
    at::Tensor& split = splits_x ? operands.x : operands.dy;
    MatrixCodes& codes = splits_x ? operands.x_codes : operands.dy_codes;
    if (gathers_.backward)
      codes.rows = transpose(target_, encode_and_gather(split, operand, {.magnitude = codes.magnitude}).columns);
    else split = comm::all_gather(split, 0, sp_);
    put_weight_gradient(main_grad, operands, adds);
  });
}

void Linear::collect_params(std::vector<Param*>& params) {
  params.push_back(weight_.get());
  if (bias_) params.push_back(bias_.get());
  adapters_.collect_params(params);
}

}  // namespace metroplex::nn

#include "nn/operand_rounding.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "comm/collectives.h"
#include "nn/wide.h"

namespace metroplex::nn {

using kernels::BlockFactor;
using kernels::RoundShape;
using kernels::SmallNumber;

namespace {

const int64_t* counts_pointer(const RowGroups& groups) {
  return groups.counts.defined() ? static_cast<const int64_t*>(groups.counts.mutable_data_ptr()) : nullptr;
}

}  // namespace

OperandRounding::OperandRounding(const config::Precision& precision, const std::string& module,
                                 const device::Target& target, std::array<std::vector<comm::Group>, 3> shards)
    : precision_(precision), recipe_(precision.recipe_of(module)), target_(target), shards_(std::move(shards)) {}

RoundShape OperandRounding::shape(Operand operand, SumOver sum) const {
  RoundShape shape;
  const bool hybrid = precision_.fp8_format == config::Fp8Format::hybrid;
  shape.number = hybrid && operand == Operand::gradient ? SmallNumber::e5m2 : SmallNumber::e4m3;
  const int64_t size = config::operand_block(recipe_);
  if (size == 0) return shape;
  shape.factor = BlockFactor::power_of_two;
  const bool square = operand == Operand::weight && recipe_ == config::Recipe::blockwise;
  shape.block_rows = square || sum == SumOver::rows ? size : 1;
  shape.block_columns = square || sum == SumOver::columns ? size : 1;
  return shape;
}

std::shared_ptr<Buffer> OperandRounding::make_history(const std::string& name, at::ScalarType dtype,
                                                      const comm::Group& all, int64_t num_groups,
                                                      const std::vector<topology::DimShard>& groups) {
  if (recipe_ != config::Recipe::delayed) return nullptr;
  constexpr int64_t kOperands = 3;
  const int64_t length = precision_.fp8_amax_history_len;
  history_ = std::make_shared<Buffer>();
  history_->name = name + config::kOperandHistory;
  history_->is_statistic = true;
  history_->global_shape = {1 + length, kOperands, num_groups};
  for (topology::DimShard cut : groups) {
    cut.dim = 2;
    history_->placement.cuts.push_back(cut);
    history_->placement.grid = topology::Grid::expert;
  }
  history_->local_shape = topology::local_shape(history_->global_shape, history_->placement);
  const auto options = at::TensorOptions().device(target_.memory()).dtype(acc_type(dtype));
  history_->data = at::zeros(history_->local_shape, options);
  history_->pending = at::zeros({kOperands, history_->local_shape[2]}, options);
  history_->apply = [all, length, factor = std::ldexp(1.0, static_cast<int>(precision_.fp8_margin)),
                     largest = precision_.fp8_amax_compute_algo == config::AmaxComputeAlgo::max](Buffer& buffer) {
    comm::all_reduce(buffer.pending, all, comm::ReduceOp::max);
    const at::Tensor used = buffer.data.select(0, 0), steps = buffer.data.narrow(0, 1, length);
    if (length > 1) steps.narrow(0, 1, length - 1).copy_(steps.narrow(0, 0, length - 1).clone());
    steps.select(0, 0).copy_(buffer.pending);
    // Arithmetic instead of at::where, which does not run on meta tensors. Finite, because 0 times infinity is NaN.
    const at::Tensor next =
        (largest ? at::amax(steps, {0}) : buffer.pending).mul(factor).clamp_max(std::numeric_limits<float>::max());
    used.mul_(next.eq(0)).add_(next);
  };
  return history_;
}

template <class T>
at::Tensor OperandRounding::own_magnitudes(const at::Tensor& x, const RowGroups& groups,
                                           const RoundShape& shape) const {
  using W = kernels::Wide<T>;
  const auto wide = x.options().dtype(kElementType<W>);
  at::Tensor all = at::empty({shape.groups}, wide);
  at::Tensor parts = target_.gpu() ? at::empty({shape.groups * kernels::kMagnitudeParts}, wide) : at::Tensor();
  device::launch(
      target_, {"largest_magnitudes", {&x, &groups.counts}, {&all, &parts}, {{"groups", shape.groups}}, 0, {&parts}},
      [](W* all, W*, const T* x, const int64_t* counts, const RoundShape& shape) {
        kernels::largest_magnitudes(all, x, counts, shape);
      },
      kernels::largest_magnitudes_cuda<T>, elements<W>(all), elements<W>(parts),
      static_cast<const T*>(elements<T>(x)), counts_pointer(groups), shape);
  return all;
}

// Returns the magnitude of each group that determines its factor; undefined if blocks determine theirs alone.
template <class T>
at::Tensor OperandRounding::magnitudes(const at::Tensor& x, Operand operand, const RowGroups& groups,
                                       const RoundShape& shape, bool counts) const {
  if (!config::has_tensor_factor(recipe_)) return {};
  const auto column = static_cast<int64_t>(operand);
  if (history_ == nullptr) {
    at::Tensor all = own_magnitudes<T>(x, groups, shape);
    for (const comm::Group& group : shards_[static_cast<size_t>(operand)])
      comm::all_reduce(all, group, comm::ReduceOp::max);
    return all;
  }
  if (counts) {
    const at::Tensor pending = history_->pending.select(0, column);
    pending.copy_(at::maximum(pending, own_magnitudes<T>(x, groups, shape)));
  }
  return history_->data.select(0, 0).select(0, column);
}

at::Tensor OperandRounding::round(const at::Tensor& given, Operand operand, SumOver sum, const RowGroups& groups,
                                  bool counts) const {
  if (!rounds()) return given;
  const at::Tensor x = given.contiguous();
  RoundShape call = shape(operand, sum);
  call.columns = x.size(-1), call.rows = call.columns == 0 ? 0 : x.numel() / call.columns;
  call.groups = groups.groups;
  at::Tensor out = at::empty(x.sizes(), x.options().dtype(acc_type(x.scalar_type())));
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using W = kernels::Wide<T>;
    const at::Tensor largest = magnitudes<T>(x, operand, groups, call, counts);
    device::launch(target_,
                   {"round_blocks",
                    {&x, &largest, &groups.counts},
                    {&out},
                    {{"block_rows", call.block_rows}, {"block_columns", call.block_columns}}},
                   kernels::round_blocks<T>, kernels::round_blocks_cuda<T>, elements<W>(out),
                   static_cast<const T*>(elements<T>(x)), static_cast<const W*>(elements<W>(largest)),
                   counts_pointer(groups), call);
  });
  return out;
}

void OperandRounding::check_shards(const std::string& name, const std::vector<int64_t>& sizes) const {
  const int64_t block = rounds() ? config::operand_block(recipe_) : 0;
  for (const int64_t size : sizes) {
    MPX_CHECK(block == 0 || size % block == 0, "config", name, ": a rank's shard has ", size,
              " features, but blocks of ", config::to_setting(recipe_), " have ", block,
              "; use a tensor-parallel size whose shards are multiples of ", block,
              ", another recipe, or precision.fp8_format = none");
  }
}

}  // namespace metroplex::nn

#include "nn/operand_rounding.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/philox.h"
#include "comm/collectives.h"
#include "kernels/encode_matrix.h"
#include "nn/wide.h"

namespace metroplex::nn {

using kernels::BlockFactor;
using kernels::RoundShape;
using kernels::SmallNumber;
using kernels::Wide;

namespace {

const int64_t* counts_pointer(const at::Tensor& counts) {
  return counts.defined() ? static_cast<const int64_t*>(counts.mutable_data_ptr()) : nullptr;
}

// Calls body(T{}, Out{}) with the element types of x and of the result.
template <class Body>
void dispatch_rounding(at::ScalarType x, at::ScalarType result, const Body& body) {
  if (x == result && x == at::kBFloat16) return body(kernels::Bf16{}, kernels::Bf16{});
  dispatch_element(x, [&](auto zero) { body(zero, Wide<decltype(zero)>{}); });
}

template <class T>
kernels::EncodedValues<Wide<T>> encoded_values(const Codes& out) {
  auto* const codes = static_cast<uint8_t*>(out.codes.mutable_data_ptr());
  if (!out.has_pairs()) return {codes, elements<Wide<T>>(out.decode)};
  return {codes, elements<Wide<T>>(out.tensor_decode), static_cast<uint8_t*>(out.decode.mutable_data_ptr())};
}

struct Noise {
  kernels::RoundingNoise values;
  DropoutMask positions;  // that `values` reads
};

// Writes codes and factors, see kernels::encode_values.
template <class T>
void write_codes(const device::Target& target, const Codes& out, const at::Tensor& x, const at::Tensor& largest,
                 const at::Tensor& counts, const RoundShape& shape, const Noise& noise = {}) {
  device::launch(target,
                 {"encode_values",
                  {&x, &largest, &counts, &noise.positions.counters, &noise.positions.rows},
                  {&out.codes, &out.decode, &out.tensor_decode},
                  {{"block_rows", shape.block_rows}, {"block_columns", shape.block_columns}}},
                 kernels::encode_values<T>, kernels::encode_values_cuda<T>, encoded_values<T>(out),
                 static_cast<const T*>(elements<T>(x)), static_cast<const Wide<T>*>(elements<Wide<T>>(largest)),
                 counts_pointer(counts), shape, noise.values);
}

// Writes rounded values to `out.codes`, or if `out.decode` is defined, the numbers of codes and their factors; see
// kernels::round_blocks.
template <class T, class Out>
void write_rounded(const device::Target& target, const Codes& out, const at::Tensor& x, const at::Tensor& largest,
                   const at::Tensor& counts, const RoundShape& shape, const Noise& noise) {
  device::launch(target,
                 {"round_blocks",
                  {&x, &largest, &counts, &noise.positions.counters, &noise.positions.rows},
                  {&out.codes, &out.decode},
                  {{"block_rows", shape.block_rows}, {"block_columns", shape.block_columns}}},
                 kernels::round_blocks<T, Out>, kernels::round_blocks_cuda<T, Out>, elements<Out>(out.codes),
                 static_cast<const T*>(elements<T>(x)), static_cast<const Wide<T>*>(elements<Wide<T>>(largest)),
                 counts_pointer(counts), shape, noise.values, elements<Wide<T>>(out.decode));
}

template <class T>
kernels::EncodedMatrix<Wide<T>> encoded_matrix(const MatrixCodes& out, const at::Tensor& largest) {
  kernels::EncodedMatrix<Wide<T>> to;
  const auto bytes = [](const Codes& side) { return static_cast<uint8_t*>(side.codes.mutable_data_ptr()); };
  if (out.columns.codes.defined()) to.codes = bytes(out.columns), to.decode = elements<Wide<T>>(out.columns.decode);
  if (out.rows.codes.defined())
    to.transposed = bytes(out.rows), to.transposed_decode = elements<Wide<T>>(out.rows.decode);
  to.largest = elements<Wide<T>>(largest);
  return to;
}

// Writes both sides of `out` that are defined, see kernels::encode_matrix. `magnitude`: that of the factor.
// `largest`: undefined, or updated.
template <class T>
void write_matrix_codes(const device::Target& target, const MatrixCodes& out, const at::Tensor& x,
                        const at::Tensor& magnitude, const at::Tensor& largest, const kernels::MatrixShape& shape) {
  using W = Wide<T>;
  at::Tensor parts;
  if (target.gpu() && largest.defined())
    parts = at::empty({kernels::kEncodeBlocks}, x.options().dtype(kElementType<W>));
  device::launch(
      target,
      {"encode_matrix",
       {&x, &magnitude, &largest},
       {&out.columns.codes, &out.columns.decode, &out.rows.codes, &out.rows.decode, &largest, &parts},
       {{"block", shape.block}, {"square", shape.square}},
       0,
       {&parts}},
      [](const kernels::EncodedMatrix<W>& to, W*, const T* from, const W* of_matrix,
         const kernels::MatrixShape& sizes) { kernels::encode_matrix<T>(to, from, of_matrix, sizes); },
      kernels::encode_matrix_cuda<T>, encoded_matrix<T>(out, largest), elements<W>(parts),
      static_cast<const T*>(elements<T>(x)), static_cast<const W*>(elements<W>(magnitude)), shape);
}

struct Range {
  int64_t first, size;
};

// Calls body(matrix, range) with the shard's elements of each matrix; some matrices may have none.
template <class Body>
void for_matrices(const WeightShard& shard, const Body& body) {
  for (int64_t matrix = 0; matrix < shard.matrices; ++matrix) {
    const auto local = [&](int64_t element) {
      return std::clamp<int64_t>(element - shard.begin, 0, shard.values.numel());
    };
    const int64_t first = local(matrix * shard.matrix_size());
    body(matrix, Range{first, local((matrix + 1) * shard.matrix_size()) - first});
  }
}

}  // namespace

at::ScalarType OperandRounding::result_type(at::ScalarType of_x) const {
  const bool exact = recipe_ == config::Recipe::blockwise || recipe_ == config::Recipe::mxfp8;
  return exact && of_x == at::kBFloat16 ? of_x : acc_type(of_x);
}

OperandRounding::OperandRounding(const LayerContext& context, const std::string& module,
                                 std::array<std::vector<comm::Group>, 3> shards)
    : precision_(context.precision),
      module_(module),
      recipe_(context.precision.find_recipe(module)),
      target_(context.target),
      shards_(std::move(shards)),
      key_(random_key(context.seed ^ base::hash_name(module.c_str()), 0, RandomSite::gradient_rounding)),
      meter_(rounds() ? context.rounding_meter : nullptr),
      meter_row_(meter_ != nullptr ? meter_->add(module) : 0) {
  if (encodes()) check_code_product(recipe_, target_.capability());
}

RoundShape OperandRounding::shape(Operand operand, SumOver sum) const {
  RoundShape shape;
  const bool fp4 = recipe_ == config::Recipe::nvfp4, hybrid = precision_.fp8_format == config::Fp8Format::hybrid;
  shape.number = fp4                                      ? SmallNumber::e2m1
                 : hybrid && operand == Operand::gradient ? SmallNumber::e5m2
                                                          : SmallNumber::e4m3;
  const int64_t size = config::operand_block(recipe_);
  if (size == 0) return shape;
  shape.factor = fp4 ? BlockFactor::e4m3 : BlockFactor::power_of_two;
  const bool squares = fp4 ? precision_.fp4_square_weights : recipe_ == config::Recipe::blockwise,
             square = squares && operand == Operand::weight;
  shape.block_rows = square || sum == SumOver::rows ? size : 1;
  shape.block_columns = square || sum == SumOver::columns ? size : 1;
  return shape;
}

bool OperandRounding::shares_weight() const {
  const RoundShape forward = shape(Operand::weight, SumOver::columns),
                   backward = shape(Operand::weight, SumOver::rows);
  return forward.block_rows == backward.block_rows && forward.block_columns == backward.block_columns;
}

void OperandRounding::set_gradient_columns(int64_t features, const std::vector<topology::RowRange>& ranges) {
  MPX_ASSERT(ranges.size() <= kernels::RoundingNoise::kRanges, ranges.size(), " ranges of columns");
  columns_.positions.width = features;
  columns_.num_ranges = std::max(1, static_cast<int>(ranges.size()));
  for (size_t i = 0; i < ranges.size(); ++i) columns_.ranges[i] = {ranges[i].local, ranges[i].global};
}

DropoutMask OperandRounding::positions(at::IntArrayRef sizes_sb, int64_t first_row, const Microbatch& batch) const {
  if (!rounds_randomly()) return {};
  const std::array<int64_t, 3> sizes{sizes_sb[0], sizes_sb[1], columns_.positions.width};
  constexpr double kAny = 0.5;  // a positive probability, so that counters are set
  return columns_mask(sizes, {0, 0, RandomSite::gradient_rounding, kAny, target_}, {first_row, 1, 0}, batch);
}

DropoutMask OperandRounding::positions(int64_t num_rows, int64_t first_row, const at::Tensor& counter) const {
  if (!rounds_randomly() || !counter.defined()) return {};
  DropoutMask mask{counter, {}, {}};
  mask.shape.width = columns_.positions.width, mask.shape.num_rows = num_rows;
  mask.shape.rows.first_row = first_row;
  mask.shape.rows.counters = static_cast<const int64_t*>(counter.const_data_ptr());
  return mask;
}

// The two products of a gradient round it with different random numbers.
kernels::RoundingNoise OperandRounding::noise(Operand operand, SumOver sum, const DropoutMask& positions) const {
  kernels::RoundingNoise noise = columns_;
  if (operand != Operand::gradient || !rounds_randomly()) return noise;
  MPX_ASSERT(positions.counters.defined(), "stochastic rounding of a gradient without positions");
  noise.positions = positions.shape;
  noise.positions.key = key_ + static_cast<uint64_t>(sum);
  return noise;
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
at::Tensor OperandRounding::own_magnitudes(const at::Tensor& x, const at::Tensor& counts,
                                           const RoundShape& shape) const {
  using W = Wide<T>;
  const auto wide = x.options().dtype(kElementType<W>);
  at::Tensor all = at::empty({shape.groups}, wide);
  at::Tensor parts = target_.gpu() ? at::empty({shape.groups * kernels::kMagnitudeParts}, wide) : at::Tensor();
  device::launch(
      target_, {"largest_magnitudes", {&x, &counts}, {&all, &parts}, {{"groups", shape.groups}}, 0, {&parts}},
      [](W* all, W*, const T* x, const int64_t* counts, const RoundShape& shape) {
        kernels::largest_magnitudes(all, x, counts, shape);
      },
      kernels::largest_magnitudes_cuda<T>, elements<W>(all), elements<W>(parts),
      static_cast<const T*>(elements<T>(x)), counts_pointer(counts), shape);
  return all;
}

// Returns the magnitude of each group that determines its factor; undefined if blocks determine theirs alone.
template <class T>
at::Tensor OperandRounding::magnitudes(const at::Tensor& x, Operand operand, const at::Tensor& rows,
                                       const RoundShape& shape, bool counts) const {
  if (!config::has_tensor_factor(recipe_)) return {};
  const auto column = static_cast<int64_t>(operand);
  if (history_ == nullptr) {
    at::Tensor all = own_magnitudes<T>(x, rows, shape);
    for (const comm::Group& group : shards_[static_cast<size_t>(operand)])
      comm::all_reduce(all, group, comm::ReduceOp::max);
    return all;
  }
  if (counts) {
    const at::Tensor pending = history_->pending.select(0, column);
    pending.copy_(at::maximum(pending, own_magnitudes<T>(x, rows, shape)));
  }
  return history_->data.select(0, 0).select(0, column);
}

template <class T>
void OperandRounding::measure(Operand operand, const Measured& given) const {
  using kernels::RoundingFigures;
  const at::Tensor figures = meter_->figures().select(0, meter_row_).select(0, static_cast<int64_t>(operand)),
                   rounded = to_wide(given.rounded);
  at::Tensor parts = target_.gpu()
                         ? at::empty({given.shape.groups * kernels::kFigureParts, figures.numel()}, figures.options())
                         : at::Tensor();
  device::launch(
      target_,
      {"rounding_errors",
       {&given.x, &rounded, &given.magnitudes, &given.counts},
       {&figures, &parts},
       {{"groups", given.shape.groups}},
       0,
       {&parts}},
      [](RoundingFigures* figures, RoundingFigures*, const kernels::RoundedOperand<T>& rounded) {
        kernels::rounding_errors(figures, rounded);
      },
      kernels::rounding_errors_cuda<T>, reinterpret_cast<RoundingFigures*>(elements<double>(figures)),
      reinterpret_cast<RoundingFigures*>(elements<double>(parts)),
      kernels::RoundedOperand<T>{static_cast<const T*>(elements<T>(given.x)), elements<Wide<T>>(rounded),
                                 elements<Wide<T>>(given.magnitudes), counts_pointer(given.counts), given.shape});
}

at::Tensor OperandRounding::rotate(const at::Tensor& x, Operand operand, SumOver sum, const at::Tensor& counts,
                                   const RoundShape& shape) const {
  const bool rotates = writes_pairs() && precision_.fp4_hadamard;
  if (!rotates || operand == Operand::weight || sum != SumOver::rows) return x;
  at::Tensor out = at::empty(x.sizes(), x.options());
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(target_, {"rotate_rows", {&x, &counts}, {&out}, {{"groups", shape.groups}}},
                   kernels::rotate_rows<T>, kernels::rotate_rows_cuda<T>, elements<T>(out),
                   static_cast<const T*>(elements<T>(x)), counts_pointer(counts), shape);
  });
  return out;
}

at::Tensor OperandRounding::round(const at::Tensor& given, Operand operand, SumOver sum,
                                  const RoundOptions& options) const {
  if (!rounds()) return given;
  const at::Tensor& counts = options.groups.counts;
  RoundShape call = shape(operand, sum);
  call.columns = given.size(-1), call.rows = call.columns == 0 ? 0 : given.numel() / call.columns;
  call.groups = options.groups.groups;
  const at::Tensor x = rotate(given.contiguous(), operand, sum, counts, call);
  const kernels::RoundingNoise random = noise(operand, sum, options.positions);
  at::Tensor out = options.out;
  if (!out.defined()) out = at::empty(x.sizes(), x.options().dtype(result_type(x.scalar_type())));
  dispatch_rounding(x.scalar_type(), out.scalar_type(), [&](auto zero, auto result) {
    using T = decltype(zero);
    using Out = decltype(result);
    const at::Tensor largest = magnitudes<T>(x, operand, counts, call, options.counts);
    write_rounded<T, Out>(target_, {out, {}}, x, largest, counts, call, {random, options.positions});
    if (options.counts && is_measured()) measure<T>(operand, {x, out, largest, counts, call});
  });
  return out;
}

// libtorch's product of groups has no version for E5M2, and its results are bf16.
bool OperandRounding::encodes_groups(Operand operand) const {
  return encodes() && precision_.params_dtype == config::ParamsDtype::bf16 &&
         multiplies_grouped_codes(recipe_, target_.capability()) &&
         shape(operand, SumOver::columns).number == SmallNumber::e4m3;
}

bool OperandRounding::has_bf16_codes(at::ScalarType of_x) const {
  return config::has_one_factor(recipe_) && of_x == at::kBFloat16;
}

Codes OperandRounding::make_codes(at::IntArrayRef sizes, at::Device device, Operand operand, SumOver sum,
                                  const RoundOptions& of_codes) const {
  const RowGroups& groups = of_codes.groups;
  const RoundShape blocks = shape(operand, sum);
  const int64_t columns = sizes.back(), rows = columns == 0 ? 0 : c10::multiply_integers(sizes) / columns;
  const auto options = at::TensorOptions().device(device);
  const auto count = [](int64_t size, int64_t block) { return (size + block - 1) / block; };
  std::vector<int64_t> factors{groups.groups};
  if (!blocks.whole_groups()) factors = {count(rows, blocks.block_rows), count(columns, blocks.block_columns)};
  if (blocks.number == SmallNumber::e2m1) {
    check_product_sizes(module_, {columns}, sum == SumOver::columns ? 32 : 16);
    return {at::empty({rows, columns / 2}, options.dtype(at::kFloat4_e2m1fn_x2)),
            at::empty(factors, options.dtype(at::kFloat8_e4m3fn)),
            blocks.block_rows,
            blocks.block_columns,
            groups.counts,
            at::empty({1}, options.dtype(at::kFloat))};
  }
  const at::ScalarType codes = of_codes.bf16_codes                  ? at::kBFloat16
                               : blocks.number == SmallNumber::e5m2 ? at::kFloat8_e5m2
                                                                    : at::kFloat8_e4m3fn;
  return {at::empty({rows, columns}, options.dtype(codes)), at::empty(factors, options.dtype(at::kFloat)),
          blocks.block_rows, blocks.block_columns, groups.counts};
}

// Blocks that end with the matrices of a stack, or with rows, are those of one matrix. Returns its number of rows, if
// it is on the device.
at::Tensor OperandRounding::make_one_group(const RowGroups& groups, RoundShape& call) const {
  call.groups = groups.groups;
  if (call.whole_groups() || groups.groups == 1) return groups.counts;
  if (call.block_rows > 1) check_product_sizes(module_, {call.rows / groups.groups}, call.block_rows);
  call.groups = 1;
  return groups.counts.defined() ? groups.counts.sum(0, true) : at::Tensor();
}

Codes OperandRounding::encode(const at::Tensor& given, Operand operand, SumOver sum, const RoundOptions& options,
                              Codes out) const {
  RoundShape call = shape(operand, sum);
  call.columns = given.size(-1), call.rows = given.numel() / std::max<int64_t>(1, call.columns);
  const at::Tensor counts = make_one_group(options.groups, call);
  const at::Tensor x = rotate(given.contiguous().view({call.rows, call.columns}), operand, sum, counts, call);
  if (!out.codes.defined()) out = make_codes(x.sizes(), x.device(), operand, sum, options);
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const at::Tensor largest = magnitudes<T>(x, operand, counts, call, options.counts);
    const Noise random{noise(operand, sum, options.positions), options.positions};
    if (out.codes.scalar_type() == at::kBFloat16)
      write_rounded<kernels::Bf16, kernels::Bf16>(target_, out, x, largest, counts, call, random);
    else write_codes<T>(target_, out, x, largest, counts, call, random);
    if (options.counts && is_measured()) measure<T>(operand, {x, out.values(), largest, counts, call});
  });
  return out;
}

MatrixCodes OperandRounding::make_matrix_codes(at::IntArrayRef sizes, at::Device device, Operand operand,
                                               MatrixUses uses) const {
  MatrixCodes out;
  if (uses.columns) out.columns = make_codes(sizes, device, operand, SumOver::columns, {});
  if (!uses.rows) return out;
  out.rows = make_codes(sizes, device, operand, SumOver::rows, {});
  Codes& turned = out.rows;
  if (writes_pairs()) turned = transpose(target_, turned);
  else turned.codes = turned.codes.view({turned.codes.size(1), turned.codes.size(0)});
  if (writes_pairs() || !turned.has_blocks()) return out;
  turned.decode = turned.decode.view({turned.decode.size(1), turned.decode.size(0)});
  std::swap(turned.block_rows, turned.block_columns);
  return out;
}

MatrixCodes OperandRounding::encode_matrix(const at::Tensor& given, Operand operand, MatrixUses uses,
                                           const RoundOptions& options, MatrixCodes out) const {
  if (writes_pairs()) {
    if (uses.columns) out.columns = encode(given, operand, SumOver::columns, options, out.columns);
    if (uses.rows)
      out.rows =
          transpose(target_, encode(given, operand, SumOver::rows, {.positions = options.positions}), out.rows);
    return out;
  }
  RoundShape call = shape(operand, SumOver::columns);
  call.columns = given.size(-1), call.rows = given.numel() / std::max<int64_t>(1, call.columns);
  const at::Tensor x = given.contiguous().view({call.rows, call.columns});
  if (!out.columns.codes.defined() && !out.rows.codes.defined())
    out = make_matrix_codes(x.sizes(), x.device(), operand, uses);
  const int64_t block = config::operand_block(recipe_);
  const kernels::MatrixShape sizes{call.rows,   call.columns, block, block > 0 && call.block_rows == block,
                                   call.number, call.factor};
  dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    at::Tensor magnitude = options.magnitude, largest;
    if (history_ != nullptr) {
      const auto column = static_cast<int64_t>(operand);
      magnitude = history_->data.select(0, 0).select(0, column);
      if (options.counts) largest = history_->pending.select(0, column);
    } else if (!magnitude.defined()) {
      out.magnitude = magnitude = magnitudes<T>(x, operand, {}, call, options.counts);
    }
    write_matrix_codes<T>(target_, out, x, magnitude, largest, sizes);
    if (options.counts && is_measured()) measure<T>(operand, {x, out.columns.values(), magnitude, {}, call});
  });
  return out;
}

bool OperandRounding::encodes_shards(at::IntArrayRef sizes) const {
  const int64_t block = config::operand_block(recipe_);
  const bool fits = block == 0 || sizes.size() == 2 || sizes[sizes.size() - 2] % block == 0;
  return precision_.fp8_param_gather && config::gathers_codes(recipe_) && fits;
}

kernels::ShardShape OperandRounding::block_shape(const WeightShard& shard) const {
  const RoundShape blocks = shape(Operand::weight, SumOver::columns);
  return {shard.begin,       shard.values.numel(), shard.matrices, shard.rows,   shard.columns,
          blocks.block_rows, blocks.block_columns, blocks.number,  blocks.factor};
}

int64_t OperandRounding::count_factors(const WeightShard& shard) const {
  return !has_blocks() ? shard.matrices : block_shape(shard).blocks();
}

Codes OperandRounding::gathered_codes(const WeightShard& shard, const at::Tensor& codes,
                                      const at::Tensor& decode) const {
  if (!has_blocks()) return {codes, decode};
  const kernels::ShardShape blocks = block_shape(shard);
  return {codes, decode.view({-1, blocks.column_blocks()}), blocks.block_rows, blocks.block_columns};
}

RoundShape OperandRounding::range_shape(int64_t size) const {
  RoundShape range = shape(Operand::weight, SumOver::columns);
  range.rows = 1, range.columns = size;
  return range;
}

void OperandRounding::find_magnitudes(const at::Tensor& magnitudes, const WeightShard& shard) const {
  if (has_blocks()) {
    dispatch_element(shard.values.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      device::launch(target_, {"shard_magnitudes", {&shard.values}, {&magnitudes}}, kernels::shard_magnitudes<T>,
                     kernels::shard_magnitudes_cuda<T>, elements<Wide<T>>(magnitudes),
                     static_cast<const T*>(elements<T>(shard.values)), block_shape(shard));
    });
    return;
  }
  magnitudes.zero_();
  for_matrices(shard, [&](int64_t matrix, const Range& range) {
    if (range.size == 0) return;
    const at::Tensor x = shard.values.narrow(0, range.first, range.size);
    dispatch_element(x.scalar_type(), [&](auto zero) {
      magnitudes.narrow(0, matrix, 1).copy_(own_magnitudes<decltype(zero)>(x, {}, range_shape(x.numel())));
    });
  });
}

at::Tensor OperandRounding::used_magnitudes(const at::Tensor& found) const {
  return history_ == nullptr ? found : history_->data.select(0, 0).select(0, static_cast<int64_t>(Operand::weight));
}

void OperandRounding::encode(const WeightShard& shard, const at::Tensor& magnitudes, const at::Tensor& decode) const {
  if (has_blocks()) {
    dispatch_element(shard.values.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      device::launch(target_, {"encode_shard", {&shard.values, &magnitudes}, {&shard.codes, &decode}},
                     kernels::encode_shard<T>, kernels::encode_shard_cuda<T>,
                     static_cast<uint8_t*>(shard.codes.mutable_data_ptr()), elements<Wide<T>>(decode),
                     static_cast<const T*>(elements<T>(shard.values)),
                     static_cast<const Wide<T>*>(elements<Wide<T>>(magnitudes)), block_shape(shard));
    });
    return;
  }
  const at::Tensor used = used_magnitudes(magnitudes);
  for_matrices(shard, [&](int64_t matrix, const Range& range) {
    const at::Tensor x = shard.values.narrow(0, range.first, range.size);
    const Codes out{shard.codes.narrow(0, range.first, range.size), decode.narrow(0, matrix, 1)};
    dispatch_element(x.scalar_type(), [&](auto zero) {
      write_codes<decltype(zero)>(target_, out, x, used.narrow(0, matrix, 1), {}, range_shape(x.numel()));
    });
  });
}

// The values of the shard's codes, one-dimensional.
at::Tensor OperandRounding::decoded(const WeightShard& shard, const at::Tensor& decode) const {
  const at::Tensor whole = at::zeros({shard.matrices * shard.matrix_size()}, shard.codes.options());
  whole.narrow(0, shard.begin, shard.codes.numel()).copy_(shard.codes);
  const at::Tensor codes = whole.view({-1, shard.columns}).view(at::kFloat8_e4m3fn);
  return gathered_codes(shard, codes, decode).values().view(-1).narrow(0, shard.begin, shard.codes.numel());
}

void OperandRounding::count(const WeightShard& shard, const at::Tensor& magnitudes, const at::Tensor& decode) const {
  if (history_ != nullptr) {
    const at::Tensor pending = history_->pending.select(0, static_cast<int64_t>(Operand::weight)),
                     own = at::empty_like(pending);
    find_magnitudes(own, shard);
    pending.copy_(at::maximum(pending, own));
  }
  if (!is_measured() || shard.values.numel() == 0) return;
  const at::Tensor used = used_magnitudes(magnitudes), rounded = decoded(shard, decode);
  for_matrices(shard, [&](int64_t matrix, const Range& range) {
    if (range.size == 0) return;
    const at::Tensor x = shard.values.narrow(0, range.first, range.size),
                     part = rounded.narrow(0, range.first, range.size).unsqueeze(0),
                     largest = has_blocks() ? at::Tensor() : used.narrow(0, matrix, 1);
    dispatch_element(x.scalar_type(), [&](auto zero) {
      measure<decltype(zero)>(Operand::weight, {x, part, largest, {}, range_shape(range.size)});
    });
  });
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

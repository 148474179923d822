#include "optim/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>

#include "base/error.h"
#include "comm/collectives.h"

namespace metroplex::optim {
namespace {

// A three-dimensional parameter is a stack of matrices, each on one rank. A two-dimensional matrix is gathered.
bool is_stack(const nn::Param& param) { return param.local_shape.size() == 3; }

// Returns the regions that form each matrix of the parameter, by matrix name. Empty: the parameter is one matrix.
std::map<std::string, std::vector<topology::Region>> find_matrices(const nn::Param& param, bool split_qkv) {
  std::map<std::string, std::vector<topology::Region>> matrices;
  for (const topology::Region& region : param.placement.regions) {
    if (region.matrix.empty() || (!is_stack(param) && !split_qkv)) continue;
    MPX_ASSERT(region.dim == 0, region.name, ": a matrix within a parameter is a range of its first dim");
    matrices[region.matrix].push_back(region);
  }
  return matrices;
}

// Returns the rows of `region` in the gathered parameter. Empty if another rank holds that matrix of a stack.
topology::RowRange gathered_rows(const nn::Param& param, const topology::Region& region) {
  const topology::DimShard* dim_shard = is_stack(param) ? topology::find_shard(param.placement, region.dim) : nullptr;
  if (dim_shard == nullptr) return {region.begin, region.begin, region.size};
  for (const topology::RowRange& range : dim_shard->ranges) {
    const int64_t begin = std::max(region.begin, range.global),
                  end = std::min(region.begin + region.size, range.global + range.size);
    if (begin >= end) continue;
    MPX_ASSERT(end - begin == region.size, region.name, ": a matrix of a stack is divided between ranks");
    return {range.local + begin - range.global, begin, region.size};
  }
  return {};
}

at::ScalarType main_type(at::ScalarType param) { return param == at::kDouble ? at::kDouble : at::kFloat; }

std::vector<Shard> select_others(const std::vector<Shard>& slices) {
  std::vector<Shard> others;
  for (const Shard& slice : slices) {
    if (!slice.param->has_matrices()) others.push_back(slice);
  }
  return others;
}

}  // namespace

static std::array<double, 3> coefficients_of_step(config::MuonCoefficients coefficients, int64_t step) {
  static constexpr std::array<double, 3> kSimple = {3.4445, -4.7750, 2.0315};
  static constexpr std::array<double, 3> kQuintic[] = {{4.0848, -6.8946, 2.9270},
                                                       {3.9505, -6.3029, 2.6377},
                                                       {3.7418, -5.5913, 2.3037},
                                                       {2.8769, -3.1427, 1.2046},
                                                       {2.8366, -3.0525, 1.2012}};
  return coefficients == config::MuonCoefficients::simple ? kSimple : kQuintic[step % std::ssize(kQuintic)];
}

at::Tensor newton_schulz(const at::Tensor& x, int64_t steps, config::MuonCoefficients coefficients) {
  const bool tall = x.size(0) > x.size(1);
  at::Tensor y = tall ? x.t().contiguous() : x.clone();
  y.div_(y.norm().clamp_min(1e-15));
  for (int64_t i = 0; i < steps; ++i) {
    const auto [of_x, of_a, of_square] = coefficients_of_step(coefficients, i);
    const at::Tensor a = at::mm(y, y.t());
    const at::Tensor b = at::addmm(a, a, a, of_a, of_square);
    y = at::addmm(y, b, y, of_x, 1.0);
  }
  return tall ? y.t().contiguous() : y;
}

double muon_scale(config::MuonScale mode, int64_t rows, int64_t columns) {
  const auto m = static_cast<double>(rows), n = static_cast<double>(columns);
  if (mode == config::MuonScale::spectral) return std::sqrt(std::max(m, n));
  if (mode == config::MuonScale::unit_rms_norm) return std::sqrt(m / n);
  return std::sqrt(std::max(1.0, m / n));
}

Muon::Muon(const config::OptimizerTraits& traits, const config::Optim& config, std::vector<Shard> slices,
           const OptimizerContext& context)
    : config_(config),
      axes_(context.axes),
      device_(context.target.memory()),
      others_(make_optimizer(traits.others, config, select_others(slices), context)) {
  for (const nn::Param* param : context.groups->params()) {
    const bool depthwise = param->local_shape.size() == 3 && param->local_shape[1] == 1;  // a vector per channel
    MPX_ASSERT(param->local_shape.size() <= 2 || depthwise || param->has_matrices(), param->name, " of ",
               param->local_shape.size(), " dims names no matrices");
    if (param->frozen || !param->has_matrices()) continue;
    Matrix matrix;
    matrix.param = param;
    matrix.group = context.groups->of(*param);
    if (context.find_shard_group) matrix.shard_group = context.find_shard_group(*param);
    for (const Shard& slice : slices) {
      if (slice.param == param) matrix.slice = slice;
    }
    if (matrix.slice.size() > 0) {
      matrix.main = matrix.slice.values.to(main_type(matrix.slice.values.scalar_type()));
      matrix.momentum = at::zeros_like(matrix.main);
    }
    matrices_.push_back(std::move(matrix));
  }
}

// Gathers the whole matrix, or the local matrices of a stack, from the shards of all ranks that share it.
at::Tensor Muon::gather_matrix(const Matrix& matrix, const at::Tensor& own) const {
  const nn::Param& param = *matrix.param;
  const Shard& slice = matrix.slice;
  at::Tensor local = own;
  if (matrix.shard_group.size() > 1) {
    local = at::zeros({param.numel()}, at::TensorOptions().dtype(main_type(param.dtype)).device(device_));
    if (slice.size() > 0) local.narrow(0, slice.begin, slice.size()).copy_(own);
    comm::all_reduce(local, matrix.shard_group);
  }
  local = local.view(param.local_shape);
  for (const topology::DimShard& dim_shard : param.placement.cuts) {
    if (!is_stack(param) || dim_shard.dim != 0)
      local = comm::all_gather(local, dim_shard.dim, axes_.gradient_group(dim_shard.axes));
  }
  return local;
}

at::Tensor Muon::orthogonalize(const at::Tensor& matrix) const {
  at::Tensor result = newton_schulz(matrix, config_.muon_num_ns_steps, config_.muon_coefficient_type);
  return result.mul_(muon_scale(config_.muon_scale_mode, matrix.size(0), matrix.size(1)) *
                     config_.muon_extra_scale_factor);
}

// Orthogonalizes each matrix of a gathered parameter. Matrices of a stack that do not overlap this rank's shard stay
// 0.
at::Tensor Muon::orthogonalize_each(const Matrix& matrix, const at::Tensor& gathered) const {
  const nn::Param& param = *matrix.param;
  const auto matrices = find_matrices(param, config_.muon_split_qkv);
  if (matrices.empty()) return orthogonalize(gathered);
  const int64_t row = param.numel() / std::max<int64_t>(1, param.local_shape.at(0));
  at::Tensor result = at::zeros_like(gathered);
  for (const auto& [name, regions] : matrices) {
    std::vector<at::Tensor> in, out;
    for (const topology::Region& region : regions) {
      const topology::RowRange rows = gathered_rows(param, region);
      const int64_t begin = rows.local * row, end = begin + rows.size * row;
      if (is_stack(param) && (begin >= matrix.slice.end || end <= matrix.slice.begin)) continue;
      in.push_back(gathered.narrow(0, rows.local, rows.size).flatten(0, -2));
      out.push_back(result.narrow(0, rows.local, rows.size).flatten(0, -2));
    }
    if (in.empty()) continue;
    const at::Tensor done = orthogonalize(at::cat(in));
    for (int64_t i = 0, first = 0; i < static_cast<int64_t>(out.size()); first += out[i++].size(0))
      out[i].copy_(done.narrow(0, first, out[i].size(0)));
  }
  return result;
}

// Returns this rank's shard of the orthogonalized momentum. The gathered rows of a gated matrix are not in the order
// of the whole matrix. That does not matter, because Newton-Schulz commutes with row permutations.
at::Tensor Muon::update(Matrix& matrix, const StepState& state) const {
  const Shard& slice = matrix.slice;
  at::Tensor direction;
  if (slice.size() > 0) {
    const at::Tensor gradient =
        slice.gradient.to(matrix.momentum.scalar_type()).mul(state.value(&kernels::StepValues::grad_factor));
    const at::Tensor momentum = matrix.momentum.lerp(gradient, 1.0 - config_.muon_momentum);
    direction = config_.muon_use_nesterov ? gradient.lerp(momentum, config_.muon_momentum) : momentum;
    state.take(matrix.momentum, momentum);
  }
  at::Tensor whole = gather_matrix(matrix, direction);
  if (slice.size() == 0) return direction;
  whole = orthogonalize_each(matrix, whole);
  for (const topology::DimShard& dim_shard : matrix.param->placement.cuts) {
    if (!is_stack(*matrix.param) || dim_shard.dim != 0)
      whole = comm::select_shard(whole, dim_shard.dim, axes_.gradient_group(dim_shard.axes));
  }
  return whole.contiguous().view(-1).narrow(0, slice.begin, slice.size());
}

void Muon::step(const StepState& state) {
  for (Matrix& matrix : matrices_) {
    const at::Tensor direction = update(matrix, state);
    if (matrix.slice.size() == 0) continue;
    const at::Tensor main = matrix.main.mul(state.rate(&kernels::GroupRates::keep, matrix.group));
    main.addcmul_(direction, state.rate(&kernels::GroupRates::lr, matrix.group), -1);
    state.take(matrix.main, main);
    if (!matrix.slice.values.is_same(matrix.main)) matrix.slice.values.copy_(matrix.main);
  }
  others_->step(state);
}

std::vector<State> Muon::state() {
  std::vector<State> all = others_->state();
  for (const Matrix& matrix : matrices_) {
    const Shard& slice = matrix.slice;
    if (slice.size() == 0) continue;
    const auto add = [&](const std::string& kind, const at::Tensor& tensor) {
      all.push_back({slice.param, kind, slice.begin, slice.end, tensor.scalar_type(), [tensor] { return tensor; }});
    };
    if (slice.values.scalar_type() != matrix.main.scalar_type()) add("main", matrix.main);
    add("momentum_buffer", matrix.momentum);
  }
  return all;
}

void Muon::restore(const State& state, const at::Tensor& values) {
  const auto found =
      std::find_if(matrices_.begin(), matrices_.end(), [&](const Matrix& m) { return m.param == state.param; });
  if (found == matrices_.end()) {
    others_->restore(state, values);
    return;
  }
  if (state.kind == "main") {
    found->main.copy_(values);
    found->slice.values.copy_(found->main);
    return;
  }
  MPX_ASSERT(state.kind == "momentum_buffer", "state of kind ", state.kind);
  found->momentum.copy_(values);
}

void Muon::copy_from_params() {
  others_->copy_from_params();
  for (Matrix& matrix : matrices_) {
    if (matrix.slice.size() > 0) matrix.main.copy_(matrix.slice.values);
  }
}

Optimizer::Bytes Muon::bytes() const {
  Bytes bytes = others_->bytes();
  for (const Matrix& matrix : matrices_) {
    if (matrix.slice.size() == 0) continue;
    if (matrix.slice.values.scalar_type() != matrix.main.scalar_type())
      bytes.main_params += static_cast<int64_t>(matrix.main.nbytes());
    bytes.moments += static_cast<int64_t>(matrix.momentum.nbytes());
  }
  return bytes;
}

}  // namespace metroplex::optim

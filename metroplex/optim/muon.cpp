#include "optim/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "comm/collectives.h"

namespace metroplex::optim {
namespace {

bool is_matrix(const Slice& slice) {
  return slice.param->local_shape.size() == 2 && !slice.param->embedding_or_output;
}

std::vector<Slice> others_of(const std::vector<Slice>& slices) {
  std::vector<Slice> others;
  for (const Slice& slice : slices) {
    if (!is_matrix(slice)) others.push_back(slice);
  }
  return others;
}

}  // namespace

at::Tensor newton_schulz(const at::Tensor& x, int64_t steps) {
  const bool tall = x.size(0) > x.size(1);
  at::Tensor y = tall ? x.t().contiguous() : x.clone();
  y.div_(y.norm().clamp_min(1e-7));
  for (int64_t i = 0; i < steps; ++i) {
    const at::Tensor a = at::mm(y, y.t());
    const at::Tensor b = at::addmm(a, a, a, -4.7750, 2.0315);
    y = at::addmm(y, b, y, 3.4445, 1.0);
  }
  return tall ? y.t().contiguous() : y;
}

double muon_scale(const std::string& mode, int64_t rows, int64_t columns) {
  const auto m = static_cast<double>(rows), n = static_cast<double>(columns);
  if (mode == "spectral") return std::sqrt(std::max(m, n));
  if (mode == "unit_rms_norm") return std::sqrt(m / n);
  MPX_CHECK(mode == "shape_scaling", "optim", "optim.muon_scale_mode '", mode,
            "' is unknown; choose spectral, unit_rms_norm or shape_scaling");
  return std::sqrt(std::max(1.0, m / n));
}

Muon::Muon(const config::Optim& config, std::vector<Slice> slices, const OptimizerContext& context)
    : config_(config), tp_(context.tp), others_("adam", config, others_of(slices), context) {
  for (const Slice& slice : slices) {
    if (!is_matrix(slice)) continue;
    MPX_CHECK(slice.whole(), "optim", "muon needs ", slice.param->name,
              " as a whole; set parallel.data_parallel_sharding_strategy: no_shard");
    const at::ScalarType type = slice.values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor values = slice.values.view(slice.param->local_shape);
    matrices_.push_back(
        {slice, context.groups->of(*slice.param), values.to(type), at::zeros(slice.param->local_shape, type)});
  }
}

// The orthogonalised momentum of this rank's part. Ranks of a gated or query-key-value matrix hold rows in another
// order than the whole one has; the result follows any order of rows.
at::Tensor Muon::update(Matrix& matrix, double grad_factor) const {
  const nn::Param& param = *matrix.slice.param;
  const at::Tensor gradient =
      matrix.slice.gradient.view(param.local_shape).to(matrix.momentum.scalar_type()).mul(grad_factor);
  matrix.momentum.lerp_(gradient, 1.0 - config_.muon_momentum);
  at::Tensor direction =
      config_.muon_use_nesterov ? gradient.lerp(matrix.momentum, config_.muon_momentum) : matrix.momentum;
  if (param.sharded()) direction = comm::all_gather(direction.contiguous(), param.shard.dim, tp_);
  at::Tensor whole = newton_schulz(direction, config_.muon_num_ns_steps);
  whole.mul_(muon_scale(config_.muon_scale_mode, whole.size(0), whole.size(1)) * config_.muon_extra_scale_factor);
  return param.sharded() ? comm::own_slice(whole, param.shard.dim, tp_) : whole;
}

void Muon::step(const StepArgs& args) {
  for (Matrix& matrix : matrices_) {
    const GroupRates& rates = args.rates.at(matrix.group);
    matrix.main.mul_(1.0 - rates.lr * rates.weight_decay).sub_(update(matrix, args.grad_factor), rates.lr);
    const at::Tensor values = matrix.slice.values.view(matrix.slice.param->local_shape);
    if (!values.is_same(matrix.main)) values.copy_(matrix.main);
  }
  others_.step(args);
}

std::vector<State> Muon::state() {
  std::vector<State> all = others_.state();
  for (const Matrix& matrix : matrices_) {
    const Slice& slice = matrix.slice;
    if (slice.values.scalar_type() != matrix.main.scalar_type())
      all.push_back({slice.param, "main", 0, slice.end, matrix.main.view(-1)});
    all.push_back({slice.param, "momentum_buffer", 0, slice.end, matrix.momentum.view(-1)});
  }
  return all;
}

void Muon::restore(const State& state) {
  const auto found =
      std::find_if(matrices_.begin(), matrices_.end(), [&](const Matrix& m) { return m.slice.param == state.param; });
  if (found == matrices_.end()) {
    others_.restore(state);
    return;
  }
  if (state.kind == "main") {
    found->main.view(-1).copy_(state.tensor);
    found->slice.values.copy_(found->main.view(-1));
    return;
  }
  MPX_ASSERT(state.kind == "momentum_buffer", "state of kind ", state.kind);
  found->momentum.view(-1).copy_(state.tensor);
}

void Muon::params_changed() {
  others_.params_changed();
  for (Matrix& matrix : matrices_) matrix.main.view(-1).copy_(matrix.slice.values);
}

Optimizer::Bytes Muon::bytes() const {
  Bytes bytes = others_.bytes();
  for (const Matrix& matrix : matrices_) {
    if (matrix.slice.values.scalar_type() != matrix.main.scalar_type())
      bytes.main_params += static_cast<int64_t>(matrix.main.nbytes());
    bytes.moments += static_cast<int64_t>(matrix.momentum.nbytes());
  }
  return bytes;
}

}  // namespace metroplex::optim

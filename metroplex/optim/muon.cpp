#include "optim/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "comm/collectives.h"

namespace metroplex::optim {
namespace {

bool is_matrix(const nn::Param& param) { return param.local_shape.size() == 2 && !param.embedding_or_output; }

at::ScalarType main_type(at::ScalarType param) { return param == at::kDouble ? at::kDouble : at::kFloat; }

std::vector<Slice> others_of(const std::vector<Slice>& slices) {
  std::vector<Slice> others;
  for (const Slice& slice : slices) {
    if (!is_matrix(*slice.param)) others.push_back(slice);
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

double muon_scale(config::MuonScale mode, int64_t rows, int64_t columns) {
  const auto m = static_cast<double>(rows), n = static_cast<double>(columns);
  if (mode == config::MuonScale::spectral) return std::sqrt(std::max(m, n));
  if (mode == config::MuonScale::unit_rms_norm) return std::sqrt(m / n);
  return std::sqrt(std::max(1.0, m / n));
}

Muon::Muon(const config::Optim& config, std::vector<Slice> slices, const OptimizerContext& context)
    : config_(config),
      tp_(context.tp),
      shard_(context.shard),
      options_(context.tensor.dtype(main_type(c10::typeMetaToScalarType(context.tensor.dtype())))),
      others_(config::OptimizerKind::adam, config, others_of(slices), context) {
  for (const nn::Param* param : context.groups->params()) {
    if (!is_matrix(*param)) continue;
    Matrix matrix;
    matrix.param = param;
    matrix.group = context.groups->of(*param);
    for (const Slice& slice : slices) {
      if (slice.param == param) matrix.slice = slice;
    }
    if (matrix.slice.size() > 0) {
      matrix.main = matrix.slice.values.to(main_type(matrix.slice.values.scalar_type()));
      matrix.momentum = at::zeros_like(matrix.main);
    }
    matrices_.push_back(std::move(matrix));
  }
}

// `own`, this rank's slice, and those of all ranks that share the matrix.
at::Tensor Muon::put_together(const nn::Param& param, const Slice& slice, const at::Tensor& own) const {
  at::Tensor local = own;
  if (shard_.size() > 1) {
    local = at::zeros({param.numel()}, options_);
    if (slice.size() > 0) local.narrow(0, slice.begin, slice.size()).copy_(own);
    comm::all_reduce(local, shard_);
  }
  local = local.view(param.local_shape);
  return param.sharded() ? comm::all_gather(local, param.shard.dim, tp_) : local;
}

// The slice's part of the orthogonalised momentum. Ranks of a gated or query-key-value matrix hold rows in another
// order than the whole one has; the result follows any order of rows.
at::Tensor Muon::update(Matrix& matrix, double grad_factor) const {
  const Slice& slice = matrix.slice;
  at::Tensor direction;
  if (slice.size() > 0) {
    const at::Tensor gradient = slice.gradient.to(matrix.momentum.scalar_type()).mul(grad_factor);
    matrix.momentum.lerp_(gradient, 1.0 - config_.muon_momentum);
    direction = config_.muon_use_nesterov ? gradient.lerp(matrix.momentum, config_.muon_momentum) : matrix.momentum;
  }
  at::Tensor whole = put_together(*matrix.param, slice, direction);
  if (slice.size() == 0) return direction;
  whole = newton_schulz(whole, config_.muon_num_ns_steps);
  whole.mul_(muon_scale(config_.muon_scale_mode, whole.size(0), whole.size(1)) * config_.muon_extra_scale_factor);
  if (matrix.param->sharded()) whole = comm::own_slice(whole, matrix.param->shard.dim, tp_);
  return whole.contiguous().view(-1).narrow(0, slice.begin, slice.size());
}

void Muon::step(const StepArgs& args) {
  for (Matrix& matrix : matrices_) {
    const GroupRates& rates = args.rates.at(matrix.group);
    const at::Tensor direction = update(matrix, args.grad_factor);
    if (matrix.slice.size() == 0) continue;
    matrix.main.mul_(1.0 - rates.lr * rates.weight_decay).sub_(direction, rates.lr);
    if (!matrix.slice.values.is_same(matrix.main)) matrix.slice.values.copy_(matrix.main);
  }
  others_.step(args);
}

std::vector<State> Muon::state() {
  std::vector<State> all = others_.state();
  for (const Matrix& matrix : matrices_) {
    const Slice& slice = matrix.slice;
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
    others_.restore(state, values);
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

void Muon::params_changed() {
  others_.params_changed();
  for (Matrix& matrix : matrices_) {
    if (matrix.slice.size() > 0) matrix.main.copy_(matrix.slice.values);
  }
}

Optimizer::Bytes Muon::bytes() const {
  Bytes bytes = others_.bytes();
  for (const Matrix& matrix : matrices_) {
    if (matrix.slice.size() == 0) continue;
    if (matrix.slice.values.scalar_type() != matrix.main.scalar_type())
      bytes.main_params += static_cast<int64_t>(matrix.main.nbytes());
    bytes.moments += static_cast<int64_t>(matrix.momentum.nbytes());
  }
  return bytes;
}

}  // namespace metroplex::optim

// Muon (Jordan et al., kellerjordan.github.io/posts/muon). The update of a matrix is its momentum, replaced by the
// nearest semi-orthogonal matrix via Newton-Schulz iterations on the whole matrix. Ranks that share a matrix (tensor
// parallel, ZeRO) gather it, run the same iterations, and keep their own shard. A stack of experts is one matrix per
// expert. linear_qkv is three matrices: queries, keys and values (optim.muon_split_qkv). Embeddings, output layer,
// norms and biases use another optimizer (OptimizerTraits::others).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "config/optimizers.h"
#include "optim/optimizer.h"

namespace metroplex::optim {

// x [m, n] -> approximately U V^T of its SVD; singular values end up between 0.7 and 1.2. Divides by the norm (at
// least 1e-15). Then iterates X <- a X + (b A + c A^2) X with A = X X^T `steps` times.
// simple: (a, b, c) = (3.4445, -4.7750, 2.0315). quintic: five coefficient sets in a cycle, from Emerging-Optimizers,
// Megatron's default. Iterations run in the dtype of x; Megatron runs them in bf16 unless muon_fp32_matmul_prec is
// highest.
at::Tensor newton_schulz(const at::Tensor& x, int64_t steps,
                         config::MuonCoefficients coefficients = config::MuonCoefficients::quintic);
// spectral: sqrt(max(m, n)); unit_rms_norm: sqrt(m / n); shape_scaling: sqrt(max(1, m / n)).
double muon_scale(config::MuonScale mode, int64_t rows, int64_t columns);

class Muon final : public Optimizer {
 public:
  Muon(const config::OptimizerTraits& traits, const config::Optim& config, std::vector<Shard> slices,
       const OptimizerContext& context);

  void step(const StepState& state) override;
  std::vector<State> state() override;
  void restore(const State& state, const at::Tensor& values) override;
  void copy_from_params() override;
  Bytes bytes() const override;

 private:
  struct Matrix {
    const nn::Param* param = nullptr;
    Shard slice;  // empty if other ranks of the shard group hold all of it
    size_t group = 0;
    comm::Group shard_group;
    at::Tensor main, momentum;  // flattened, for the shard
  };
  at::Tensor update(Matrix& matrix, const StepState& state) const;
  at::Tensor gather_matrix(const Matrix& matrix, const at::Tensor& own) const;
  at::Tensor orthogonalize(const at::Tensor& matrix) const;
  at::Tensor orthogonalize_each(const Matrix& matrix, const at::Tensor& gathered) const;

  config::Optim config_;
  comm::Groups axes_;
  at::Device device_;
  std::vector<Matrix> matrices_;
  std::unique_ptr<Optimizer> others_;
};

}  // namespace metroplex::optim

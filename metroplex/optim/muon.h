// Muon (Jordan et al., kellerjordan.github.io/posts/muon): the momentum of a matrix is replaced by the nearest
// semi-orthogonal matrix, found by Newton-Schulz steps on the whole matrix, which the ranks that share it put
// together (tensor parallel, ZeRO); each of them then takes the same steps and keeps its own part. A stack of experts
// is as many matrices. Embeddings, output layer, norms and biases are another optimizer's (OptimizerTraits::others).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "config/optimizers.h"
#include "optim/optimizer.h"

namespace metroplex::optim {

// x [m, n] -> about U V^T of its singular value decomposition: singular values go to between 0.7 and 1.2. `steps` of
// X <- a X + (b A + c A^2) X with A = X X^T and (a, b, c) = (3.4445, -4.7750, 2.0315), after division by the norm.
at::Tensor newton_schulz(const at::Tensor& x, int64_t steps);
// spectral: sqrt(max(m, n)); unit_rms_norm: sqrt(m / n); shape_scaling: sqrt(max(1, m / n)).
double muon_scale(config::MuonScale mode, int64_t rows, int64_t columns);

class Muon final : public Optimizer {
 public:
  Muon(const config::OptimizerTraits& traits, const config::Optim& config, std::vector<Slice> slices,
       const OptimizerContext& context);

  void step(const StepState& state) override;
  std::vector<State> state() override;
  void restore(const State& state, const at::Tensor& values) override;
  void params_changed() override;
  Bytes bytes() const override;

 private:
  struct Matrix {
    const nn::Param* param = nullptr;
    Slice slice;  // empty where the whole of it lies on other ranks of the shard group
    size_t group = 0;
    comm::Group shard;
    at::Tensor main, momentum;  // of the slice, flat
  };
  // Of this step, the same for all matrices, without dims.
  struct Numbers {
    at::Tensor updates;      // bool
    at::Tensor grad_factor;  // double
  };
  at::Tensor update(Matrix& matrix, const Numbers& numbers) const;
  at::Tensor put_together(const Matrix& matrix, const at::Tensor& own) const;
  at::Tensor orthogonalized(const at::Tensor& matrix) const;
  at::Tensor orthogonalized_stack(const Matrix& matrix, const at::Tensor& stack) const;

  config::Optim config_;
  comm::Groups axes_;
  at::Device device_;
  std::vector<Matrix> matrices_;
  std::unique_ptr<Optimizer> others_;
};

}  // namespace metroplex::optim

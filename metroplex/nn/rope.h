// Rotary position embedding: a table of cosines and sines, shared by the layers of a stage. It is computed before the
// first step; it grows in a forward only when generation passes what was reserved.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cuda/launch_point.h"
#include "nn/microbatch.h"

namespace metroplex::nn {

// Llama 3.1's scaling: frequencies of wavelengths above positions / low are divided by `factor`, those below
// positions / high stay, between them there is a linear passage. factor 1: none.
struct RopeScaling {
  double factor = 1, low = 1, high = 4;
  int64_t positions = 8192;
};

class RopeTable {
 public:
  // Rotates the first `rotary_dims` (even) dimensions of a head; angles are computed in float64 and rounded once.
  RopeTable(int64_t rotary_dims, double base, const cuda::Target& target, const RopeScaling& scaling = {})
      : rotary_dims_(rotary_dims), base_(base), target_(target), scaling_(scaling) {}

  // For x of `type`, in the memory of the target.
  void reserve(int64_t positions, at::ScalarType type);

  // In place, without autograd, on x [s, b, heads, head_dim] (any strides, last one 1) whose rows have the positions
  // `rows`. direction +1: forward; -1: the inverse rotation, for the gradient.
  void rotate(const at::Tensor& x, const Positions& rows, int direction);

 private:
  void grow(int64_t positions, const at::TensorOptions& options);

  int64_t rotary_dims_;
  double base_;
  cuda::Target target_;
  RopeScaling scaling_;
  at::Tensor cos_, sin_;  // [positions, rotary_dims / 2]
};

}  // namespace metroplex::nn

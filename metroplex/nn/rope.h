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

// YaRN (Peng et al., arXiv 2309.00071): pairs that turn less than `slow` times over `positions` are slowed by
// `factor`, those that turn more than `fast` times stay, between them there is a passage linear in the number of the
// pair, whose ends are whole numbers with `rounds`. factor 1: none.
struct RopeYarn {
  double factor = 1, fast = 32, slow = 1;
  int64_t positions = 4096;
  bool rounds = true;
};
// 0.1 weight ln(factor) + 1: by how much YaRN's attention is sharper. 1 for factors up to 1.
double yarn_mscale(double factor, double weight);

struct RopeSpec {
  int64_t dims = 0;  // the first dimensions of a head, even
  double base = 10000;
  bool interleaved = false;  // pairs are neighbours
  double interpolation = 1;  // positions are divided by it
  RopeScaling scaling = {};
  RopeYarn yarn = {};
  double amplitude = 1;  // of the cosines and sines
};

class RopeTable {
 public:
  // Angles are computed in float64 and rounded once.
  RopeTable(const RopeSpec& spec, const cuda::Target& target) : spec_(spec), target_(target) {}
  RopeTable(int64_t rotary_dims, double base, const cuda::Target& target, const RopeScaling& scaling = {})
      : RopeTable(RopeSpec{.dims = rotary_dims, .base = base, .scaling = scaling}, target) {}

  // For x of `type`, in the memory of the target.
  void reserve(int64_t positions, at::ScalarType type);

  // In place, without autograd, on x [s, b, heads, head_dim] (any strides, last one 1) whose rows have the positions
  // `rows`. direction +1: forward; -1: the inverse rotation, times the amplitude again, for the gradient.
  void rotate(const at::Tensor& x, const Positions& rows, int direction);

 private:
  void grow(int64_t positions, const at::TensorOptions& options);

  RopeSpec spec_;
  cuda::Target target_;
  at::Tensor cos_, sin_;  // [positions, dims / 2]
};

}  // namespace metroplex::nn

// Rotary position embedding: a table of cosines and sines, shared by the layers of a stage. It is computed before the
// first step. It grows in a forward only if generation exceeds the reserved length.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "device/launch_point.h"
#include "nn/microbatch.h"

namespace metroplex::nn {

// Llama 3.1's scaling. Frequencies with wavelengths above positions / low are divided by `factor`; those below
// positions / high are unchanged; in between the scale is interpolated linearly. factor 1: off.
struct RopeScaling {
  double factor = 1, low = 1, high = 4;
  int64_t positions = 8192;
};

// YaRN (Peng et al., arXiv 2309.00071). Pairs with fewer than `slow` rotations over `positions` are slowed by
// `factor`; those with more than `fast` are unchanged. In between the scale is linear in the pair's index; `rounds`
// rounds both ends to integers. factor 1: off.
struct RopeYarn {
  double factor = 1, fast = 32, slow = 1;
  int64_t positions = 4096;
  bool rounds = true;
};
// YaRN's attention scale, 0.1 weight ln(factor) + 1; 1 if factor <= 1.
double yarn_mscale(double factor, double weight);

// LongRoPE (arXiv 2402.13753): divisors of the frequencies, one per pair, for all positions of a sequence. Sequences
// of more than `positions` use `above`, others `up_to`. Empty: off.
struct RopeFactors {
  std::vector<double> up_to = {}, above = {};
  int64_t positions = 0;
};

struct RopeSpec {
  int64_t dims = 0;  // number of rotated dimensions, the first ones of a head; even
  double base = 10000;
  bool interleaved = false;  // a pair consists of adjacent dimensions
  double interpolation = 1;  // divisor of the positions
  RopeScaling scaling = {};
  RopeYarn yarn = {};
  double amplitude = 1;  // factor of the cosines and sines
  RopeFactors factors = {};
  // Queries at position p are multiplied by 1 + query_beta ln(1 + floor((p + query_offset) / query_positions)).
  double query_beta = 0;
  int64_t query_positions = 1, query_offset = 0;
  bool rotates = true;  // false: queries are only multiplied, and keys are unchanged
};

class RopeTable {
 public:
  // Computes angles in fp64 and rounds once.
  RopeTable(const RopeSpec& spec, const device::Target& target) : spec_(spec), target_(target) {}
  RopeTable(int64_t rotary_dims, double base, const device::Target& target, const RopeScaling& scaling = {})
      : RopeTable(RopeSpec{.dims = rotary_dims, .base = base, .scaling = scaling}, target) {}

  // Computes the table for `positions` positions and x of `type`, in the memory of the target.
  void reserve(int64_t positions, at::ScalarType type);

  enum class Of { queries, keys };
  // [sequence, dims / 2] in at least fp32; undefined if the heads are not rotated.
  struct Angles {
    at::Tensor cos, sin;
    bool interleaved = false;
  };
  // Returns the angles of x [s, ...]; row i has position rows[i].
  Angles angles(const at::Tensor& x, const Positions& rows, Of what);

  // Rotates x [s, b, heads, head_dim] (any strides, last one 1) in place, without autograd; no-op if the angles are
  // undefined. direction +1: forward; -1: inverse rotation for the gradient, also scaled by the amplitude.
  void rotate(const at::Tensor& x, const Angles& angles, int direction) const;
  void rotate(const at::Tensor& x, const Positions& rows, int direction, Of what = Of::keys);

 private:
  // [positions, dims / 2]
  struct Table {
    at::Tensor cos, sin, query_cos, query_sin;
  };
  // Returns the table for sequences of `positions`.
  const Table& grow(int64_t positions, const at::TensorOptions& options);
  void scale_queries(Table& table) const;

  RopeSpec spec_;
  device::Target target_;
  std::array<Table, 2> tables_;  // for sequences up to factors.positions, and for longer ones
};

}  // namespace metroplex::nn

// Static buffers for the microbatches of a step, for CUDA graphs. There is one set of tensors per microbatch, which
// all chunks of a rank read. It is refilled before every step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "nn/microbatch.h"

namespace metroplex::pipeline {

class StaticBatches {
 public:
  explicit StaticBatches(at::Device device) : device_(device) {}

  // Allocates buffers like `batches` and copies their values. Graphs captured over the old buffers become invalid.
  void allocate(const std::vector<nn::Microbatch>& batches);
  // Returns the first difference between `batches` and the buffers that a captured graph cannot follow; empty if
  // there is none. Compares number of microbatches, defined tensors, shapes, dtypes, row_ranges and training.
  // Example: "microbatch 1: tokens: Long [2, 8], not Long [1, 8]".
  std::string difference(const std::vector<nn::Microbatch>& batches) const;
  bool fits(const std::vector<nn::Microbatch>& batches) const { return difference(batches).empty(); }
  // Copies the values of `batches`, which must all be on one device. The host does not wait, and `batches` may be
  // freed at once. Asserts fits().
  void fill(const std::vector<nn::Microbatch>& batches);

  // The values of the last fill(); addresses are fixed until allocate(). Counters and step of a microbatch share a
  // storage.
  const std::vector<nn::Microbatch>& batches() const { return batches_; }
  int64_t bytes() const;  // on the device, for all buffers

 private:
  at::Device device_;
  std::vector<nn::Microbatch> batches_;
  std::vector<at::Tensor> buffers_;  // all tensors of batches_
};

}  // namespace metroplex::pipeline

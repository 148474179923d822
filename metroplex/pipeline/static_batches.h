// Static buffers for the microbatches of a step, for graphs: one set of tensors per microbatch, which all chunks of a
// rank read, refilled before every step.
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

  // Allocates buffers like `batches` and copies their values. Graphs captured over the old buffers are invalid then.
  void make(const std::vector<nn::Microbatch>& batches);
  // Where `batches` differ from the buffers in what a captured graph has baked in: number of microbatches, which
  // tensors are defined, their shapes and dtypes, row_runs, training. Such as "microbatch 1: tokens: Long [2, 8], not
  // Long [1, 8]"; empty: nothing differs.
  std::string difference(const std::vector<nn::Microbatch>& batches) const;
  bool fits(const std::vector<nn::Microbatch>& batches) const { return difference(batches).empty(); }
  // Copies their values, which are all on one device. The host does not wait, and `batches` may be freed at once.
  // Asserts fits().
  void fill(const std::vector<nn::Microbatch>& batches);

  // As filled last; the addresses stay until make(). Counters and step of a microbatch share a storage.
  const std::vector<nn::Microbatch>& batches() const { return batches_; }
  int64_t bytes() const;  // of the device, for all buffers

 private:
  at::Device device_;
  std::vector<nn::Microbatch> batches_;
  std::vector<at::Tensor> places_;  // all tensors of batches_
};

}  // namespace metroplex::pipeline

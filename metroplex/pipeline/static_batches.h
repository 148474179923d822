// The microbatches of a step at places that do not change, for graphs: one set of buffers a microbatch, which all
// chunks of a rank read, refilled before every step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/side_stream.h"
#include "nn/microbatch.h"

namespace metroplex::pipeline {

class StaticBatches {
 public:
  // On a GPU, batches of the host come by way of a second set of buffers, which a side stream fills while the last
  // step still runs. `side` (null: there is none, as on the CPU) stands in for that stream in tests.
  explicit StaticBatches(at::Device device);
  StaticBatches(at::Device device, std::unique_ptr<cuda::SideStream> side);

  // Buffers of the form of `batches`, with their values. What was captured over the old ones is void.
  void make(const std::vector<nn::Microbatch>& batches);
  // What a graph over the buffers would not notice in `batches`: number, shapes and types of tensors, which of them
  // there are, what the host knows of rows, training. Such as "microbatch 1: tokens: Long [2, 8], not Long
  // [1, 8]"; empty: nothing differs.
  std::string difference(const std::vector<nn::Microbatch>& batches) const;
  bool fits(const std::vector<nn::Microbatch>& batches) const { return difference(batches).empty(); }
  // Their values. The host does not wait, and the current stream for no more than the copies; `batches` may go at
  // once. They lie all on the host or all on the device. Asserts fits().
  void fill(const std::vector<nn::Microbatch>& batches);

  // As filled last; the addresses stay until make(). Counters and step of a microbatch share a storage.
  const std::vector<nn::Microbatch>& batches() const { return batches_; }
  int64_t bytes() const;  // of the device, for all buffers

 private:
  // Ways to the values of a step from the host: one copy to the device, then each tensor to its place.
  struct Staging {
    at::Tensor flat;                // uint8
    std::vector<at::Tensor> parts;  // views, in the order of places_
  };
  void fill_places(const std::vector<at::Tensor>& from);
  void stage(const std::vector<at::Tensor>& from);

  at::Device device_;
  std::unique_ptr<cuda::SideStream> side_;
  std::vector<nn::Microbatch> batches_;
  std::vector<at::Tensor> places_;  // all tensors of batches_
  Staging staging_;
};

}  // namespace metroplex::pipeline

// Base of the elementwise optimizers (kernels/adam.h, sgd.h, lion.h): main parameters and moments of every shard
// in their storage formats, and their checkpoint state. An update works on any range of a shard. With
// optim.optimizer_cpu_offload, state and step are on the host, chunk by chunk.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/optimizers.h"
#include "device/device.h"
#include "optim/host_chunks.h"
#include "optim/optimizer.h"
#include "optim/stored.h"

namespace metroplex::optim {

// An update of ranges: one range on the CPU, all ranges at once on a GPU.
struct ElementwiseStep {
  const char* kernel;
  const device::Target& target;
  const StepState& state;  // on the device that computes the step
  std::vector<kernels::RatedRange> ranges;
  std::vector<const at::Tensor*> reads, writes;  // tensors that `ranges` point into; null or undefined: ignored

  // Launches the CPU or GPU version of a kernel (kernels/optimizer_step.h).
  template <class Hyper>
  void run(void (*cpu_kernel)(const kernels::OptimizerRange&, const Hyper&, const kernels::StepPlace&),
           void (*gpu_kernel)(const std::vector<kernels::RatedRange>&, const Hyper&, const kernels::StepValues*,
                              CUstream_st*),
           const Hyper& hyper) const {
    const kernels::StepValues* const values = state.values();
    if (target.gpu()) {
      device::launch(target, {kernel, reads, writes}, device::CpuOnly(), gpu_kernel, ranges, hyper, values);
      return;
    }
    const kernels::RatedRange& only = ranges.at(0);
    device::launch(target, {kernel, reads, writes, {{"noise_key", only.range.noise_key}}}, cpu_kernel, NoGpu(),
                   only.range, hyper, kernels::StepPlace{values, only.rates});
  }

 private:
  struct NoGpu {
    template <class... Args>
    void operator()(const Args&...) const {
      MPX_ASSERT(false, "one range on a GPU, which takes them all at once");
    }
  };
};
using ElementwiseUpdate = void(const config::Optim& config, const ElementwiseStep& step);

class Elementwise final : public Optimizer {
 public:
  // Allocates the state that `traits` lists for every shard.
  Elementwise(const config::OptimizerTraits& traits, ElementwiseUpdate* update, const config::Optim& config,
              std::vector<Shard> slices, const OptimizerContext& context);

  void step(const StepState& state) override;
  std::vector<State> state() override;
  void restore(const State& state, const at::Tensor& values) override;
  void copy_from_params() override;
  Bytes bytes() const override;

 private:
  struct Item {
    Shard slice;
    size_t group = 0;
    bool in_place = false;  // the parameter is its own main parameter
    at::Tensor main;        // fp32, for a parameter in half precision
    at::Tensor remainder;   // replaces main: int16, the low halves
    std::vector<MomentStorage> moments;
  };
  // Elements [begin, begin + values.numel()) of an item's shard. values and gradient are on the device that computes
  // the step.
  struct Range {
    int64_t begin = 0;
    at::Tensor values, gradient;
  };
  Item make_item(const Shard& slice, const OptimizerContext& context) const;
  void make_chunks();
  kernels::OptimizerRange make_range(Item& item, const Range& range) const;
  void add(Item& item, const Range& range, ElementwiseStep& step) const;
  void update(Item& item, const Range& range, const StepState& state) const;
  at::Tensor main_values(const Item& item) const;
  void set_main(Item& item, const at::Tensor& values) const;

  config::Optim config_;
  std::string kernel_;  // <name>_step
  ElementwiseUpdate* update_;
  std::vector<config::OptimizerMoment> moments_;
  std::vector<Item> items_;
  std::map<std::pair<const nn::NamedTensor*, int64_t>, size_t> index_;  // maps parameter and first element to an item
  struct Chunk {
    size_t item;
    int64_t begin;
  };
  std::vector<Chunk> chunks_;       // with offload: chunks of `host_`
  std::optional<HostChunks> host_;  // with offload
  uint64_t seed_;
  device::Target target_;  // for the step and its state
};

}  // namespace metroplex::optim

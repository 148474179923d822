// What optimizers share that look at one element at a time (adam.cpp, sgd.cpp, lion.cpp): main parameters and moments
// of every slice, however they are stored, and their checkpoint. An update works on any range of a slice: with
// optim.optimizer_cpu_offload the state lies on the host and the step is done there, chunk by chunk.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/optimizers.h"
#include "cuda/device.h"
#include "optim/host_chunks.h"
#include "optim/optimizer.h"
#include "optim/stored.h"

namespace metroplex::optim {

// One update of one range.
struct ElementwiseStep {
  const char* kernel;
  const cuda::Target& target;
  cuda::kernels::OptimizerRange range;
  GroupRates rates;
  double grad_factor = 1.0;
  int64_t step = 1;  // of this update, from 1
  // That the range points into; null or undefined where there is none.
  struct Tensors {
    const at::Tensor *gradient, *values, *old_values, *main, *remainder, *first, *first_scales, *second,
        *second_scales;
  } tensors;

  // Calls one of a kernel's twins (cuda/kernels/optimizer_step.h).
  template <class Hyper>
  void run(void (*on_cpu_twin)(const cuda::kernels::OptimizerRange&, const Hyper&),
           void (*on_gpu_twin)(const cuda::kernels::OptimizerRange&, const Hyper&, CUstream_st*),
           const Hyper& hyper) const {
    const Tensors& t = tensors;
    cuda::launch(target,
                 {kernel,
                  {t.gradient, t.old_values, t.main, t.remainder, t.first, t.first_scales, t.second, t.second_scales},
                  {t.values, t.main, t.remainder, t.first, t.first_scales, t.second, t.second_scales},
                  {{"lr", rates.lr},
                   {"weight_decay", rates.weight_decay},
                   {"grad_factor", grad_factor},
                   {"step", step},
                   {"noise_key", range.noise_key}}},
                 on_cpu_twin, on_gpu_twin, range, hyper);
  }
};
using ElementwiseUpdate = void(const config::Optim& config, const ElementwiseStep& step);

class Elementwise final : public Optimizer {
 public:
  // Keeps what `traits` says of every slice.
  Elementwise(const config::OptimizerTraits& traits, ElementwiseUpdate* update, const config::Optim& config,
              std::vector<Slice> slices, const OptimizerContext& context);

  void step(const StepArgs& args) override;
  std::vector<State> state() override;
  void restore(const State& state, const at::Tensor& values) override;
  void params_changed() override;
  Bytes bytes() const override;
  int64_t steps() const override { return steps_; }
  void set_steps(int64_t steps) override { steps_ = steps; }

 private:
  struct Item {
    Slice slice;
    size_t group = 0;
    bool in_place = false;  // the parameter is its own main parameter
    at::Tensor main;        // fp32 beside a parameter in half precision
    at::Tensor remainder;   // instead of main: int16, the low halves
    std::vector<Stored> moments;
  };
  // [begin, begin + values.numel()) of an item's slice, with its values and gradient where the step is done.
  struct Range {
    int64_t begin = 0;
    at::Tensor values, gradient;
  };
  Item make_item(const Slice& slice, const OptimizerContext& context) const;
  void make_chunks();
  cuda::kernels::OptimizerRange range_of(Item& item, const Range& range) const;
  void update(Item& item, const Range& range, const StepArgs& args) const;
  at::Tensor main_values(const Item& item) const;
  void set_main(Item& item, const at::Tensor& values) const;

  config::Optim config_;
  std::string kernel_;  // <name>_step
  ElementwiseUpdate* update_;
  std::vector<config::OptimizerMoment> moments_;
  std::vector<Item> items_;
  struct Chunk {
    size_t item;
    int64_t begin;
  };
  std::vector<Chunk> chunks_;       // with offload: of `host_`
  std::optional<HostChunks> host_;  // with offload
  uint64_t seed_;
  cuda::Target target_;  // of the step and its state
  int64_t steps_ = 0;
};

}  // namespace metroplex::optim

// AdamW, SGD and Lion: updates that look at one element at a time, so that they work on any slice of a parameter, and
// on any piece of a slice: with optim.optimizer_cpu_offload the state lies on the host and the step is done there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "optim/host_pieces.h"
#include "optim/optimizer.h"
#include "optim/stored.h"

namespace metroplex::optim {

class Elementwise final : public Optimizer {
 public:
  // `name`: adam | sgd | lion.
  Elementwise(const std::string& name, const config::Optim& config, std::vector<Slice> slices,
              const OptimizerContext& context);

  void step(const StepArgs& args) override;
  std::vector<State> state() override;
  void restore(const State& state, const at::Tensor& values) override;
  void params_changed() override;
  Bytes bytes() const override;
  int64_t steps() const override { return steps_; }
  void set_steps(int64_t steps) override { steps_ = steps; }

 private:
  enum class Rule { adam, sgd, lion };
  struct Item {
    Slice slice;
    size_t group = 0;
    bool in_place = false;  // the parameter is its own main parameter
    at::Tensor main;        // fp32 beside a parameter in half precision
    at::Tensor remainder;   // instead of main: int16, the low halves
    std::vector<Stored> moments;
  };
  // [begin, begin + values.numel()) of an item's slice, with its values and gradient where the step is done.
  struct Part {
    int64_t begin = 0;
    at::Tensor values, gradient;
  };
  Item make_item(const Slice& slice, const OptimizerContext& context) const;
  void make_pieces();
  cuda::kernels::OptimizerRange range_of(Item& item, const Part& part) const;
  void update(Item& item, const Part& part, const StepArgs& args) const;
  at::Tensor main_values(const Item& item) const;
  void set_main(Item& item, const at::Tensor& values) const;

  config::Optim config_;
  Rule rule_;
  std::vector<std::string> kinds_;  // of the moments
  std::vector<Item> items_;
  struct Piece {
    size_t item;
    int64_t begin;
  };
  std::vector<Piece> pieces_;       // with offload: of `host_`
  std::optional<HostPieces> host_;  // with offload
  uint64_t seed_;
  cuda::Target target_;  // of the step and its state
  int64_t steps_ = 0;
};

}  // namespace metroplex::optim

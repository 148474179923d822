// AdamW, SGD and Lion: updates that look at one element at a time, so that they work on any slice of a parameter.
#pragma once

#include <string>
#include <vector>

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
  void restore(const State& state) override;
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
  Item make_item(const Slice& slice, const OptimizerContext& context) const;
  cuda::kernels::OptimizerRange range_of(Item& item) const;
  at::Tensor main_values(const Item& item) const;
  void set_main(Item& item, const at::Tensor& values) const;

  config::Optim config_;
  Rule rule_;
  std::vector<std::string> kinds_;  // of the moments
  std::vector<Item> items_;
  uint64_t seed_;
  int64_t steps_ = 0;
};

}  // namespace metroplex::optim

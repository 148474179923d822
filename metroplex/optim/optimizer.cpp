#include "optim/optimizer.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"

namespace metroplex::optim {
namespace {

// Parameters that share a weight decay: what one fused call takes. slots[k][i] is state kind k of params[i].
struct ParamGroup {
  bool decays = false;
  std::vector<nn::Param*> params;
  std::vector<std::vector<at::Tensor>> slots;
  std::vector<at::Tensor> counters;  // the step number, one a parameter as the fused AdamW wants it
};

// The fused calls divide gradients by a float scale. In double that rounding would show, so there the factor is
// applied before; in float it rides along and saves a pass over memory.
std::optional<at::Tensor> apply_factor(double factor, const std::vector<at::Tensor>& grads) {
  if (factor == 1.0 || grads.empty()) return std::nullopt;
  if (grads[0].scalar_type() != at::kFloat) {
    for (const at::Tensor& grad : grads) grad.mul_(factor);
    return std::nullopt;
  }
  return at::full({}, 1.0 / factor, at::kFloat);
}

// What an update of one group gets.
struct GroupStep {
  const StepArgs& args;
  double weight_decay;
  int64_t steps;  // successful ones before this
  std::vector<at::Tensor> data, grads;
  std::optional<at::Tensor> scale;
};

class FusedOptimizer : public Optimizer {
 public:
  FusedOptimizer(const config::Optim& config, const std::vector<nn::Param*>& params, std::vector<std::string> kinds)
      : config_(config), kinds_(std::move(kinds)), groups_(2) {
    groups_[0].decays = true;
    for (nn::Param* param : params) groups_[param->weight_decay ? 0 : 1].params.push_back(param);
    for (ParamGroup& group : groups_) {
      group.slots.resize(kinds_.size());
      for (nn::Param* param : group.params) {
        for (auto& slot : group.slots) slot.push_back(at::zeros_like(param->data));
        group.counters.push_back(at::zeros({}, at::kFloat));
      }
    }
  }

  void step(const StepArgs& args) override {
    for (ParamGroup& group : groups_) {
      if (group.params.empty()) continue;
      GroupStep step{args, group.decays ? args.weight_decay : 0.0, steps_, {}, {}, std::nullopt};
      for (const nn::Param* param : group.params) {
        step.data.push_back(param->data);
        step.grads.push_back(param->main_grad);
      }
      step.scale = apply_factor(args.grad_factor, step.grads);
      update(group, step);
    }
    ++steps_;
  }

  std::vector<State> state() override {
    std::vector<State> all;
    for (ParamGroup& group : groups_) {
      for (size_t i = 0; i < group.params.size(); ++i) {
        for (size_t k = 0; k < kinds_.size(); ++k) all.push_back({group.params[i], kinds_[k], group.slots[k][i]});
      }
    }
    return all;
  }
  int64_t steps() const override { return steps_; }
  void set_steps(int64_t steps) override { steps_ = steps; }

 protected:
  virtual void update(ParamGroup& group, GroupStep& step) = 0;
  config::Optim config_;

 private:
  std::vector<std::string> kinds_;
  std::vector<ParamGroup> groups_;
  int64_t steps_ = 0;
};

class Adam final : public FusedOptimizer {
 public:
  Adam(const config::Optim& config, const std::vector<nn::Param*>& params)
      : FusedOptimizer(config, params, {"exp_avg", "exp_avg_sq"}) {}

 private:
  void update(ParamGroup& group, GroupStep& step) override {
    for (at::Tensor& counter : group.counters) counter.fill_(static_cast<double>(step.steps + 1));
    at::_fused_adamw_(step.data, step.grads, group.slots[0], group.slots[1], {}, group.counters, step.args.lr,
                      config_.adam_beta1, config_.adam_beta2, step.weight_decay, config_.adam_eps, /*amsgrad=*/false,
                      /*maximize=*/false, step.scale, std::nullopt);
  }
};

class Sgd final : public FusedOptimizer {
 public:
  Sgd(const config::Optim& config, const std::vector<nn::Param*>& params)
      : FusedOptimizer(config, params, kinds_of(config)) {}

 private:
  // Without momentum there is no state, and the fused call wants none.
  static std::vector<std::string> kinds_of(const config::Optim& config) {
    return config.sgd_momentum == 0 ? std::vector<std::string>{} : std::vector<std::string>{"momentum_buffer"};
  }
  void update(ParamGroup& group, GroupStep& step) override {
    const at::TensorList momentum = group.slots.empty() ? at::TensorList() : at::TensorList(group.slots[0]);
    at::_fused_sgd_(step.data, step.grads, momentum, step.weight_decay, config_.sgd_momentum, step.args.lr,
                    /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/step.steps == 0,
                    step.scale, std::nullopt);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const config::Optim& config, std::vector<nn::Param*> params) {
  if (config.optimizer == "adam") return std::make_unique<Adam>(config, params);
  MPX_CHECK(config.optimizer == "sgd", "optim", "optim.optimizer '", config.optimizer,
            "' is unknown; choose adam or sgd");
  return std::make_unique<Sgd>(config, params);
}

}  // namespace metroplex::optim

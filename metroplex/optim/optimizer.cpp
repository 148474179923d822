#include "optim/optimizer.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"

namespace metroplex::optim {
namespace {

// Parameters that share a weight decay: what one fused call takes.
struct ParamGroup {
  bool decays;
  std::vector<nn::Param*> params;
  std::vector<at::Tensor> first, second;  // exp_avg or momentum; exp_avg_sq
  std::vector<at::Tensor> counters;       // Adam's step number, one a parameter as the fused call wants it
};

std::vector<ParamGroup> group_by_decay(const std::vector<nn::Param*>& params) {
  std::vector<ParamGroup> groups{{true, {}, {}, {}, {}}, {false, {}, {}, {}, {}}};
  for (nn::Param* param : params) groups[param->weight_decay ? 0 : 1].params.push_back(param);
  return groups;
}

std::vector<at::Tensor> zeros_like_params(const std::vector<nn::Param*>& params) {
  std::vector<at::Tensor> tensors;
  for (const nn::Param* param : params) tensors.push_back(at::zeros_like(param->data));
  return tensors;
}

void collect(const ParamGroup& group, std::vector<at::Tensor>& data, std::vector<at::Tensor>& grads) {
  for (const nn::Param* param : group.params) {
    data.push_back(param->data);
    grads.push_back(param->main_grad);
  }
}

// The fused calls divide gradients by a float scale. In double that rounding would show, so there the factor is
// applied before; in float it rides along and saves a pass over memory.
std::optional<at::Tensor> apply_factor(double factor, const std::vector<at::Tensor>& grads) {
  if (factor == 1.0 || grads.empty()) return std::nullopt;
  if (grads[0].scalar_type() != at::kFloat) {
    for (at::Tensor grad : grads) grad.mul_(factor);
    return std::nullopt;
  }
  return at::full({}, 1.0 / factor, at::kFloat);
}

class Adam final : public Optimizer {
 public:
  Adam(const config::Optim& config, const std::vector<nn::Param*>& params)
      : config_(config), groups_(group_by_decay(params)) {
    for (ParamGroup& group : groups_) {
      group.first = zeros_like_params(group.params);
      group.second = zeros_like_params(group.params);
      for (size_t i = 0; i < group.params.size(); ++i) group.counters.push_back(at::full({}, 0.0, at::kFloat));
    }
  }

  void step(const StepArgs& args) override {
    ++steps_;
    for (ParamGroup& group : groups_) {
      if (group.params.empty()) continue;
      std::vector<at::Tensor> data, grads;
      collect(group, data, grads);
      const auto scale = apply_factor(args.grad_factor, grads);
      for (at::Tensor& counter : group.counters) counter.fill_(static_cast<double>(steps_));
      at::_fused_adamw_(data, grads, group.first, group.second, {}, group.counters, args.lr, config_.adam_beta1,
                        config_.adam_beta2, group.decays ? args.weight_decay : 0.0, config_.adam_eps,
                        /*amsgrad=*/false, /*maximize=*/false, scale, std::nullopt);
    }
  }

  std::vector<State> state() override {
    std::vector<State> all;
    for (ParamGroup& group : groups_) {
      for (size_t i = 0; i < group.params.size(); ++i) {
        all.push_back({group.params[i], "exp_avg", group.first[i]});
        all.push_back({group.params[i], "exp_avg_sq", group.second[i]});
      }
    }
    return all;
  }
  int64_t steps() const override { return steps_; }
  void set_steps(int64_t steps) override { steps_ = steps; }

 private:
  config::Optim config_;
  std::vector<ParamGroup> groups_;
  int64_t steps_ = 0;
};

class Sgd final : public Optimizer {
 public:
  Sgd(const config::Optim& config, const std::vector<nn::Param*>& params)
      : config_(config), groups_(group_by_decay(params)) {
    for (ParamGroup& group : groups_) group.first = zeros_like_params(group.params);
  }

  void step(const StepArgs& args) override {
    for (ParamGroup& group : groups_) {
      if (group.params.empty()) continue;
      std::vector<at::Tensor> data, grads;
      collect(group, data, grads);
      const auto scale = apply_factor(args.grad_factor, grads);
      at::_fused_sgd_(data, grads, group.first, group.decays ? args.weight_decay : 0.0, config_.sgd_momentum, args.lr,
                      /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/steps_ == 0, scale,
                      std::nullopt);
    }
    ++steps_;
  }

  std::vector<State> state() override {
    std::vector<State> all;
    for (ParamGroup& group : groups_) {
      for (size_t i = 0; i < group.params.size(); ++i)
        all.push_back({group.params[i], "momentum_buffer", group.first[i]});
    }
    return all;
  }
  int64_t steps() const override { return steps_; }
  void set_steps(int64_t steps) override { steps_ = steps; }

 private:
  config::Optim config_;
  std::vector<ParamGroup> groups_;
  int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const config::Optim& config, std::vector<nn::Param*> params) {
  if (config.optimizer == "adam") return std::make_unique<Adam>(config, params);
  MPX_CHECK(config.optimizer == "sgd", "optim", "optim.optimizer '", config.optimizer,
            "' is unknown; choose adam or sgd");
  return std::make_unique<Sgd>(config, params);
}

}  // namespace metroplex::optim

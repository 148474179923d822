// Updates parameters from their main gradients. State is keyed by parameter and kind, never by position in a buffer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/optim.h"
#include "nn/param.h"

namespace metroplex::optim {

struct StepArgs {
  double lr = 0;
  double weight_decay = 0;   // for parameters with Param::weight_decay, the others get 0
  double grad_factor = 1.0;  // every gradient is multiplied by this first (clipping)
};

// A tensor of optimizer state: same shape and placement as its parameter.
struct State {
  nn::Param* param;
  std::string kind;  // exp_avg | exp_avg_sq | momentum_buffer (none without momentum)
  at::Tensor tensor;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual void step(const StepArgs& args) = 0;
  virtual std::vector<State> state() = 0;
  // Successful steps so far; the bias correction of Adam depends on it.
  virtual int64_t steps() const = 0;
  virtual void set_steps(int64_t steps) = 0;
};

// adam: AdamW with decoupled decay (Loshchilov & Hutter, arXiv:1711.05101). sgd: torch.optim.SGD's momentum, decay
// added to the gradient. Throws on an unknown name. `params` outlive the optimizer.
std::unique_ptr<Optimizer> make_optimizer(const config::Optim& config, std::vector<nn::Param*> params);

}  // namespace metroplex::optim

// Updates the own slices of parameters from their final gradients. State is keyed by parameter, range and kind, never
// by position in a buffer, and is handed out as plain numbers however it is stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/world.h"
#include "config/config.h"
#include "cuda/launch_point.h"
#include "optim/param_groups.h"
#include "optim/step_state.h"
#include "distributed/slice.h"

namespace metroplex::optim {

using distributed::Slice;

// Optimizer state of one slice. main: the fp32 parameter behind one in half precision.
struct State {
  const nn::Param* param;
  std::string kind;      // main | exp_avg | exp_avg_sq | momentum_buffer (none without momentum)
  int64_t begin, end;    // of the local tensor, flat
  at::ScalarType dtype;  // of values(): fp32 or fp64
  // [end - begin]: the storage itself, or a copy decoded at each call. While the optimizer lives.
  std::function<at::Tensor()> values;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // By the numbers of `state`, which has the groups of the optimizer's ParamGroups; nothing where it says so.
  virtual void step(const StepState& state) = 0;
  // What there is; nothing is decoded before it is asked for.
  virtual std::vector<State> state() = 0;
  // Takes `values` as those of `state`, one of state().
  virtual void restore(const State& state, const at::Tensor& values) = 0;
  // The parameters were written from outside (loading, first values): main parameters follow them.
  virtual void params_changed() = 0;
  // Bytes of main parameters and of moments that this rank holds; all of it and the buffers of its step in `host`
  // with optim.optimizer_cpu_offload.
  struct Bytes {
    int64_t main_params = 0, moments = 0, host = 0;
  };
  virtual Bytes bytes() const = 0;
};

struct OptimizerContext {
  const ParamGroups* groups = nullptr;  // outlives the optimizer
  comm::Groups axes;    // of this rank: muon puts matrices together over those that cut them, and over shard_of
  cuda::Target target;  // of parameters
  // Over which a parameter's state is shared, asked when the optimizer is made; empty: over nobody.
  std::function<comm::Group(const nn::Param& param)> shard_of = {};
  uint64_t seed = 1234;  // of stochastic rounding
};

// The optimizer `name`, a row of config/optimizers.h, with the settings of `config`. Throws on an unknown one.
std::unique_ptr<Optimizer> make_optimizer(const std::string& name, const config::Optim& config,
                                          std::vector<Slice> slices, const OptimizerContext& context);
// config.optimizer.
std::unique_ptr<Optimizer> make_optimizer(const config::Optim& config, std::vector<Slice> slices,
                                          const OptimizerContext& context);

}  // namespace metroplex::optim

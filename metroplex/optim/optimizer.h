// Updates this rank's slices of the parameters from their final gradients. State is identified by parameter, kind and
// range, never by a position in a buffer, and state() decodes it to fp32 or fp64, whatever its storage format.
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

// Training state that belongs to a range of a local tensor: of an optimizer, or (train/state_tensors.h) the weight or
// buffer itself.
struct State {
  const nn::NamedTensor* param;
  std::string kind;    // as in docs/checkpoint_format.md; of an optimizer main (the fp32 parameter behind one in half
                       // precision), exp_avg, exp_avg_sq, momentum_buffer (none without momentum)
  int64_t begin, end;  // of the local tensor, flat
  at::ScalarType dtype;
  // [end - begin] of `dtype` (of an optimizer fp32 or fp64): the storage itself, or a copy decoded at each call.
  // Valid while the optimizer lives.
  std::function<at::Tensor()> values;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // One update, with the rates and the gradient factor of `state`; changes nothing if `state` says that the step does
  // not update.
  virtual void step(const StepState& state) = 0;
  // All state. Nothing is decoded before State::values is called.
  virtual std::vector<State> state() = 0;
  // Sets the values of `state`, an element of state().
  virtual void restore(const State& state, const at::Tensor& values) = 0;
  // To be called when the parameters were written from outside, as by a load: copies them to the main parameters.
  virtual void params_changed() = 0;
  // Bytes of main parameters and of moments that this rank holds. With optim.optimizer_cpu_offload they count in
  // `host`, with the buffers of the step, and the others are 0.
  struct Bytes {
    int64_t main_params = 0, moments = 0, host = 0;
  };
  virtual Bytes bytes() const = 0;
};

struct OptimizerContext {
  const ParamGroups* groups = nullptr;  // outlives the optimizer
  comm::Groups axes;    // of this rank: muon gathers matrices over those that cut them, and over shard_of
  cuda::Target target;  // of parameters
  // The group that shards a parameter's state; called by make_optimizer. Empty: nothing is sharded.
  std::function<comm::Group(const nn::Param& param)> shard_of = {};
  uint64_t seed = 1234;  // of stochastic rounding
};

// The optimizer `name`, a row of config/optimizers.h, with the settings of `config`. Throws when it is unknown.
std::unique_ptr<Optimizer> make_optimizer(const std::string& name, const config::Optim& config,
                                          std::vector<Slice> slices, const OptimizerContext& context);
// config.optimizer.
std::unique_ptr<Optimizer> make_optimizer(const config::Optim& config, std::vector<Slice> slices,
                                          const OptimizerContext& context);

}  // namespace metroplex::optim

// Updates this rank's shards of the parameters from their final gradients. State is identified by parameter, kind and
// range, not by a buffer position. state() decodes it to fp32 or fp64 from any storage format.
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
#include "device/launch_point.h"
#include "optim/param_groups.h"
#include "optim/step_state.h"
#include "distributed/slice.h"

namespace metroplex::optim {

using distributed::Shard;

// Training state of a range of a local tensor: optimizer state, or the weight or buffer itself
// (step/state_tensors.h).
struct State {
  const nn::NamedTensor* param;
  std::string kind;    // as in docs/checkpoint_format.md. Optimizer kinds: main (fp32 main parameter of a
                       // half-precision parameter), exp_avg, exp_avg_sq, momentum_buffer
  int64_t begin, end;  // in the flattened local tensor
  at::ScalarType dtype;
  // Returns [end - begin] of `dtype` (fp32 or fp64 for optimizer state): the storage itself, or a copy decoded in
  // each call. Valid while the optimizer lives.
  std::function<at::Tensor()> values;
  // Sets the values of a weight that is stored as codes; null for other states.
  std::function<void(const at::Tensor&)> store = nullptr;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Performs one update with the rates and the gradient factor of `state`. Changes nothing if the step decision in
  // `state` is not to update.
  virtual void step(const StepState& state) = 0;
  // Returns all state. Values are decoded only when State::values is called.
  virtual std::vector<State> state() = 0;
  // Sets the values of `state`, an element of state().
  virtual void restore(const State& state, const at::Tensor& values) = 0;
  // Copies the parameters to the main parameters. Call after parameters were written externally, for example by a
  // load.
  virtual void copy_from_params() = 0;
  // Memory of main parameters and moments on this rank. With optim.optimizer_cpu_offload they count in `host`,
  // together with the step's buffers, and the other fields are 0.
  struct Bytes {
    int64_t main_params = 0, moments = 0, host = 0;
  };
  virtual Bytes bytes() const = 0;
};

struct OptimizerContext {
  const ParamGroups* groups = nullptr;  // must outlive the optimizer
  comm::Groups axes;      // Muon gathers matrices over this rank's tensor-parallel groups and find_shard_group
  device::Target target;  // for the parameters
  // Returns the group that shards a parameter's state; called by make_optimizer. Empty: no sharding.
  std::function<comm::Group(const nn::Param& param)> find_shard_group = {};
  uint64_t seed = 1234;  // for stochastic rounding
};

// Creates the optimizer `name`, a row of config/optimizers.h, with the settings of `config`. Throws
// base::Error("optim") for an unknown name.
std::unique_ptr<Optimizer> make_optimizer(const std::string& name, const config::Optim& config,
                                          std::vector<Shard> slices, const OptimizerContext& context);
std::unique_ptr<Optimizer> make_optimizer(const config::Optim& config, std::vector<Shard> slices,
                                          const OptimizerContext& context);

}  // namespace metroplex::optim

// The interpreter of a PipelineTable: executes this rank's list of actions on its stages, independent of the
// schedule. Inputs and runs live until their backward. Waits for sends and receives happen as late as possible. A
// receive is waited for when its tensor is used. A send is waited for once it must have completed, for example
// when the gradient of the sent output has arrived. It is also waited for when plan::Borders::kMostLeaving newer
// sends are in flight. Until then the sent tensor stays alive, even after the table's `free`.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/listeners.h"
#include "comm/collectives.h"
#include "comm/group.h"
#include "device/turns.h"
#include "graph/graph.h"
#include "pipeline/stage.h"
#include "plan/borders.h"
#include "plan/graph_plan.h"
#include "plan/pipeline_table.h"

namespace metroplex::pipeline {

// A value that crosses stage borders. Border i is between stages i and i + 1 of the model. Integers have no gradient,
// so nothing is sent back for them.
struct BorderValue {
  std::string name;
  std::vector<int64_t> sizes;  // [s (/tp with sequence parallelism), b, ...], for the first microbatch
  at::ScalarType dtype;
  int first = 0, end = std::numeric_limits<int>::max();  // crosses the borders [first, end)

  bool differentiable() const { return at::isFloatingType(dtype); }
  int64_t bytes() const;
};

// All border values, in the order of the stages' outputs and inputs.
struct BorderShape {
  std::vector<BorderValue> values;
  bool variable = false;  // microbatches differ in s and b; sizes are derived from each microbatch's tokens

  std::vector<BorderValue> values_at(int border) const;
  int64_t bytes(int border) const;
};

// One step, or one evaluation if the table is forward_only.
struct PipelineInput {
  const plan::PipelineTable& table;
  const std::vector<nn::Microbatch>& batches;  // one per microbatch of the table
  // [microbatches], on the device of the losses. Element m is the factor of microbatch m's sums in the step's loss.
  // It enters the backward with the loss of the last stage and with the loss terms of every stage.
  at::Tensor loss_gradients;
  BorderShape border;
  // The graph plan for the table and this rank: captured regions run in its graph instances. Null: all regions run
  // eagerly.
  const plan::GraphPlan* graphs = nullptr;
  graph::GraphDevice* warmup_device = nullptr;  // run everything on its capture stream; null: on the current stream
};

struct PipelineOutput {
  std::vector<at::Tensor> last;      // last stage: summed loss or logits of each microbatch; else empty
  std::vector<nn::LossTerms> terms;  // one list per microbatch: terms reported by this rank's segments
};

// The executor calls it after every action, for timers and the memory report. The actions of one batched p2p call,
// and two actions in turns, are reported together at their end and share the time equally. Waiting time of a receive
// counts in the forward or backward that uses it.
using ActionObserver = std::function<void(const plan::Action& action, double seconds)>;

class Executor {
 public:
  // `stages[c]` is chunk c of this rank. The index in the pipeline group `pp` is the rank's row of the table.
  Executor(std::vector<Stage*> stages, comm::Group pp);

  PipelineOutput run(const PipelineInput& in);

  base::Listeners<ActionObserver>& observers() { return observers_; }
  // Number of live border-tensor sets and runs; 0 between steps. For deallocation tests.
  size_t num_live() const { return borders_.count() + runs_.size() + weights_.size(); }
  // Returns the bytes of the live border tensors, or of those for which `counts` returns true.
  int64_t border_bytes(const std::function<bool(const at::Tensor&)>& counts = nullptr) const;

 private:
  using Key = plan::BorderKey;
  struct Step;
  // One batched p2p call, shared by its actions, so that it is waited for once.
  struct P2pCall {
    comm::Handle handle;
    bool done = false;  // waited for; never polled, so that lifetimes depend on the table alone
    void wait();
  };
  using Tensors = std::vector<at::Tensor>;  // one per border value; undefined for gradients of integers

  void run_forward(const Step& step, const plan::Action& action);
  void run_backward(const Step& step, const plan::Action& action);
  nn::Values take_inputs(const Step& step, const plan::Action& action);
  void put_outputs(const Step& step, const plan::Action& action, const nn::Values& y);
  StageRun take_run(const Key& key);
  Tensors output_gradients(const Step& step, const plan::Action& action, const at::Tensor& factor);
  void put_gradients(const Step& step, const plan::Action& action, Tensors dx);
  void weight(const plan::Action& action);
  void exchange(const Step& step, const plan::Action* begin, const plan::Action* end);
  static std::vector<int64_t> border_sizes(const Step& step, const BorderValue& value, int microbatch);
  static at::TensorOptions border_options(const Step& step, const BorderValue& value);

  std::vector<Stage*> stages_;
  comm::Group pp_;
  base::Listeners<ActionObserver> observers_;
  plan::Borders<Tensors, P2pCall> borders_;  // for this rank's chunks
  std::map<Key, StageRun> runs_;
  // Between backward and weight, if the table splits them.
  std::map<Key, std::vector<nn::DeferredGradients>> weights_;
  std::unique_ptr<device::Turns> turns_;  // if a table has actions in turns
};

}  // namespace metroplex::pipeline

// The interpreter of a PipelineTable: executes this rank's list of actions on its stages. It knows no schedule; what
// is drawn and verified is what runs. Inputs and runs live until their backward. Sends and receives are waited for as
// late as possible: a receive when its tensor is used; a send when it is known to be done (the gradient of the sent
// output has arrived, say) or when plan::Borders::kMostLeaving newer ones are in flight. Until then the sent tensor
// stays alive, even after the table's `free`.
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
#include "cuda/graph/graph.h"
#include "pipeline/stage.h"
#include "plan/borders.h"
#include "plan/graph_plan.h"
#include "plan/pipeline_table.h"

namespace metroplex::pipeline {

// A value that crosses stage borders. Border i is between the stages i and i + 1 of the model. Integers have no
// gradient, so nothing is sent back for them.
struct BorderValue {
  std::string name;
  std::vector<int64_t> sizes;  // [s (/tp with sequence parallelism), b, ...], for the first microbatch
  at::ScalarType dtype;
  int first = 0, end = std::numeric_limits<int>::max();  // crosses the borders [first, end)

  bool differentiable() const { return at::isFloatingType(dtype); }
  int64_t bytes() const;
};

// All of them, in the order of the stages' outputs and inputs.
struct BorderShape {
  std::vector<BorderValue> values;
  bool variable = false;  // microbatches differ in s and b: sizes of each follow from the sizes of its tokens

  // The values that cross one border.
  std::vector<BorderValue> crossing(int border) const;
  int64_t bytes(int border) const;
};

// One step, or, with a table that is forward_only, one evaluation.
struct PipelineInput {
  const plan::PipelineTable& table;
  const std::vector<nn::Microbatch>& batches;  // one a microbatch of the table
  // [microbatches], where the losses lie. Element m enters the backward of microbatch m with the loss of the last
  // stage and with the loss terms of every stage: the factor of its sums in the step's loss.
  at::Tensor loss_gradients;
  BorderShape border;
  // Planned for the table and this rank: captured islands run in its graph instances. Null: all islands run eagerly.
  const plan::GraphPlan* graphs = nullptr;
  cuda::GraphDevice* warms_up = nullptr;  // all runs on its capture stream; null: on the current one
};

// What one run gives on this rank.
struct PipelineOutput {
  std::vector<at::Tensor> last;      // of the last stage, one a microbatch: summed loss or logits; else empty
  std::vector<nn::LossTerms> terms;  // one list a microbatch: what the segments of this rank reported
};

// Called after every action, for timers and the memory report. The actions of one batched p2p call are reported
// together after the call and share its time equally. Time spent waiting for a receive belongs to the forward or
// backward that uses it.
using ActionObserver = std::function<void(const plan::Action& action, double seconds)>;

class Executor {
 public:
  // `stages[c]` is chunk c of this rank; `pp` is the pipeline group, whose index is the rank's row of the table.
  Executor(std::vector<Stage*> stages, comm::Group pp);

  PipelineOutput run(const PipelineInput& in);

  base::Listeners<ActionObserver>& observers() { return observers_; }
  // Sets of border tensors and runs alive now; 0 between steps. For tests of deallocation.
  size_t live() const { return borders_.count() + runs_.size() + weights_.size(); }
  // Returns the bytes of the border tensors alive now, or of those for which `counts` returns true.
  int64_t border_bytes(const std::function<bool(const at::Tensor&)>& counts = nullptr) const;

 private:
  using Key = plan::BorderKey;
  struct Step;
  // One batched p2p call, shared by its actions: waiting once is enough.
  struct Call {
    comm::Handle handle;
    bool done = false;  // has been waited for: never polled, so what is kept alive depends on the table alone
    void wait();
  };
  using Tensors = std::vector<at::Tensor>;  // one a border value; of gradients undefined for integers

  // Around the forward of a stage, and around its backward.
  nn::Values input_of(const Step& step, const plan::Action& action);
  void pass_on(const Step& step, const plan::Action& action, const nn::Values& y);
  StageRun take_run(const Key& key);
  Tensors output_gradients(const Step& step, const plan::Action& action, const at::Tensor& factor);
  void pass_back(const Step& step, const plan::Action& action, Tensors dx);
  void weight(const plan::Action& action);
  void exchange(const Step& step, const plan::Action* begin, const plan::Action* end);
  static std::vector<int64_t> sizes_of(const Step& step, const BorderValue& value, int microbatch);
  static at::TensorOptions options_of(const Step& step, const BorderValue& value);

  std::vector<Stage*> stages_;
  comm::Group pp_;
  base::Listeners<ActionObserver> observers_;
  plan::Borders<Tensors, Call> borders_;  // of this rank's chunks
  std::map<Key, StageRun> runs_;
  std::map<Key, std::vector<nn::DeferredGradients>>
      weights_;  // between backward and weight, where a table splits them
};

}  // namespace metroplex::pipeline

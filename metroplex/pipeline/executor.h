// The interpreter of a PipelineTable: walks this rank's list of actions over its stages. It knows no schedule; what
// is drawn and verified is what runs. Inputs and runs live until their backward. Sends and receives are waited for as
// late as possible: a receive when its tensor is used, a send when it is known to be done (an output's gradient has
// come, say) or plan::Borders::kMostLeaving newer ones are under way; until then what is sent stays alive, the output
// that the table has freed too.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/listeners.h"
#include "comm/collectives.h"
#include "comm/group.h"
#include "pipeline/stage.h"
#include "plan/borders.h"
#include "plan/graph_plan.h"
#include "plan/pipeline_table.h"

namespace metroplex::pipeline {

// A value that crosses every stage border. Integers have no gradient: nothing of them is sent back.
struct BorderValue {
  std::string name;
  std::vector<int64_t> sizes;  // [s (/tp with sequence parallelism), b, ...], for the first microbatch
  at::ScalarType dtype;

  bool differentiable() const { return at::isFloatingType(dtype); }
  int64_t bytes() const;
};

// All of them, in the order in which stages give and take them.
struct BorderShape {
  std::vector<BorderValue> values;
  bool variable = false;  // microbatches differ in s and b: those of each follow from its tokens

  int64_t bytes() const;
};

// What one run gives on this rank.
struct PipelineOutput {
  std::vector<at::Tensor> last;      // of the last stage, one a microbatch: summed loss or logits; else empty
  std::vector<nn::LossTerms> terms;  // one list a microbatch: what the segments of this rank reported
};

// What happened, for timers and the memory meter: called once for every action, right after it. The actions of one
// batched call are reported together after the call and share its time equally. Waiting for a receive counts to the
// forward or backward that uses it.
using ActionObserver = std::function<void(const plan::Action& action, double seconds)>;

class Executor {
 public:
  // `stages[c]` is chunk c of this rank; `pp` is the pipeline group, whose index is the rank's row of the table.
  Executor(std::vector<Stage*> stages, comm::Group pp);

  // Runs one step (or, with table.forward_only, one evaluation) over `batches` (one a microbatch of the table).
  // loss_gradients [microbatches] lie where the losses do. Element m enters the backward of microbatch m with the
  // loss of the last stage and with the loss terms of every stage: the factor of its sums in the step's loss.
  // With `graphs`, planned for the table and this rank, stages that capture run as the graphs of its live sets.
  PipelineOutput run(const plan::PipelineTable& table, const std::vector<nn::Microbatch>& batches,
                     const at::Tensor& loss_gradients, const BorderShape& border,
                     const plan::GraphPlan* graphs = nullptr);

  base::Listeners<ActionObserver>& observers() { return observers_; }
  // Sets of border tensors and runs alive now; 0 between steps. For tests of deallocation.
  size_t live() const { return borders_.count() + runs_.size(); }
  // Of border tensors alive now.
  int64_t border_bytes() const;

 private:
  using Key = plan::BorderKey;
  struct Step;
  // One batched p2p call, shared by its actions: waiting once is enough.
  struct Call {
    comm::Handle handle;
    bool done = false;  // waited for: what is kept depends on the table alone, not on who was faster
    void wait();
  };
  using Tensors = std::vector<at::Tensor>;  // one a border value; of gradients undefined for integers

  void forward(const Step& step, const plan::Action& action);
  void backward(const Step& step, const plan::Action& action);
  void exchange(const Step& step, const plan::Action* begin, const plan::Action* end);
  static std::vector<int64_t> sizes_of(const Step& step, const BorderValue& value, int microbatch);
  static at::TensorOptions options_of(const Step& step, const BorderValue& value);

  std::vector<Stage*> stages_;
  comm::Group pp_;
  base::Listeners<ActionObserver> observers_;
  plan::Borders<Tensors, Call> borders_;  // of this rank's chunks
  std::map<Key, StageRun> runs_;
};

}  // namespace metroplex::pipeline

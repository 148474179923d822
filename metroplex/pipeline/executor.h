// The interpreter of a PipelineTable: walks this rank's list of actions over its stages. It knows no schedule; what
// is drawn and verified is what runs. Inputs and runs live until their backward. Sends and receives are waited for as
// late as possible: a receive when its tensor is used, a send when it is known to be done or kMostLeaving newer ones
// are under way; until then what is sent stays alive, the output that the table has freed too.
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
  std::vector<at::Tensor> last;       // of the last stage, one a microbatch: summed loss or logits; else empty
  std::vector<nn::LossTerms> terms;   // one list a microbatch: what the segments of this rank reported
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
  // loss_gradients[m] enters the backward of microbatch m with the loss of the last stage and with the loss terms of
  // every stage: the factor of its sums in the step's loss.
  PipelineOutput run(const plan::PipelineTable& table, const std::vector<nn::Microbatch>& batches,
                     const std::vector<double>& loss_gradients, const BorderShape& border);

  base::Listeners<ActionObserver>& observers() { return observers_; }
  // Sets of border tensors and runs alive now; 0 between steps. For tests of deallocation.
  size_t live() const {
    return inputs_.size() + outputs_.size() + gradients_.size() + input_gradients_.size() + runs_.size() +
           leaving_.size();
  }
  // Of border tensors alive now.
  int64_t border_bytes() const;
  // Sets that the schedule is done with but whose sends may not be: at most these are kept, the newest ones. Two
  // are what an overlapped schedule has under way, outputs and gradients.
  static constexpr size_t kMostLeaving = 2;

 private:
  using Key = std::pair<int, int>;  // microbatch, chunk
  struct Step;
  // One batched p2p call, shared by its actions: waiting once is enough.
  struct Call {
    comm::Handle handle;
    bool done = false;  // waited for: what is kept depends on the table alone, not on who was faster
    void wait();
  };
  using Flight = std::shared_ptr<Call>;
  using Tensors = std::vector<at::Tensor>;  // one a border value; of gradients undefined for integers

  void forward(const Step& step, const plan::Action& action);
  void backward(const Step& step, const plan::Action& action);
  void exchange(const Step& step, const plan::Action* begin, const plan::Action* end);
  void release(Key key);
  void leave(Flight flight, Tensors tensors);
  void drop_sent(size_t most_left);
  static std::vector<int64_t> sizes_of(const Step& step, const BorderValue& value, int microbatch);
  static at::TensorOptions options_of(const Step& step, const BorderValue& value);
  Tensors& slot(const plan::Action& action);
  Tensors take(std::map<Key, Tensors>& from, std::map<Key, Flight>& flights, Key key);

  std::vector<Stage*> stages_;
  comm::Group pp_;
  base::Listeners<ActionObserver> observers_;
  std::map<Key, Tensors> inputs_, outputs_, gradients_;  // border tensors of this rank's chunks
  std::map<Key, Tensors> input_gradients_;               // computed, not yet sent
  std::map<Key, StageRun> runs_;
  std::map<Key, Flight> inputs_in_flight_, gradients_in_flight_, outputs_in_flight_;
  std::vector<std::pair<Flight, Tensors>> leaving_;  // in the order in which they were given up
};

}  // namespace metroplex::pipeline

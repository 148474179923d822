// The interpreter of a PipelineTable: walks this rank's list of actions over its stages. It knows no schedule; what
// is drawn and verified is what runs. Inputs and runs live until their backward. Sends and receives are waited for as
// late as possible: a receive when its tensor is used, a send when it is known to be done or kMostLeaving newer ones
// are under way; until then what is sent stays alive, the output that the table has freed too.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "comm/collectives.h"
#include "comm/group.h"
#include "pipeline/stage.h"
#include "plan/pipeline_table.h"

namespace metroplex::pipeline {

// Of the tensors that cross a stage border: [s (/tp with sequence parallelism), b, h], for the first microbatch.
struct BorderShape {
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  bool variable = false;  // microbatches differ in s and b: those of each follow from its tokens
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
  // loss_gradients[m] enters the backward of microbatch m on the last stage: the factor of its summed loss in the
  // step's loss. Returns the outputs of the last stage, one a microbatch (empty on other ranks).
  std::vector<at::Tensor> run(const plan::PipelineTable& table, const std::vector<nn::Microbatch>& batches,
                              const std::vector<double>& loss_gradients, const BorderShape& border);

  void set_observer(ActionObserver observer) { observer_ = std::move(observer); }
  // Border tensors and runs alive now; 0 between steps. For tests of deallocation.
  size_t live() const {
    return inputs_.size() + outputs_.size() + gradients_.size() + input_gradients_.size() + runs_.size() +
           leaving_.size();
  }
  // Tensors that the schedule is done with but whose sends may not be: at most these are kept, the newest ones. Two
  // are what an overlapped schedule has under way, an output and a gradient.
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

  void forward(const Step& step, const plan::Action& action, std::vector<at::Tensor>& losses);
  void backward(const Step& step, const plan::Action& action);
  void exchange(const Step& step, const plan::Action* begin, const plan::Action* end);
  void release(Key key);
  void leave(Flight flight, at::Tensor tensor);
  void drop_sent(size_t most_left);
  static std::vector<int64_t> sizes_of(const Step& step, int microbatch);
  at::Tensor& incoming_slot(const plan::Action& action);
  at::Tensor outgoing_tensor(const plan::Action& action);
  at::Tensor take(std::map<Key, at::Tensor>& from, std::map<Key, Flight>& flights, Key key);

  std::vector<Stage*> stages_;
  comm::Group pp_;
  ActionObserver observer_;
  std::map<Key, at::Tensor> inputs_, outputs_, gradients_;  // border tensors of this rank's chunks
  std::map<Key, at::Tensor> input_gradients_;               // computed, not yet sent
  std::map<Key, StageRun> runs_;
  std::map<Key, Flight> inputs_in_flight_, gradients_in_flight_, outputs_in_flight_;
  std::vector<std::pair<Flight, at::Tensor>> leaving_;  // in the order in which they were given up
};

}  // namespace metroplex::pipeline

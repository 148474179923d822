// The whole step as one CUDA graph (train.cuda_graph_impl: full_iteration). The graph contains all microbatches and
// chunks of a rank, sends and receives, gradient reduction, clipping, step decision, optimizer and parameter
// gathering. Each rank has one graph for training and one for evaluation, in a shared pool. The first steps of each
// run eagerly.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "graph/graph.h"
#include "nn/microbatch.h"
#include "step/rank_model.h"
#include "step/step_vector.h"

namespace metroplex::step {

struct StepInput;
class Timers;

class StepGraphs {
 public:
  // The arguments must outlive this object, and the target of the process must use device.recorder().
  StepGraphs(const ProcessContext& process, RankModel& model, StepBuffers& step_buffers, graph::GraphDevice& device);
  ~StepGraphs();

  // The captured part of a step: everything after write_step_inputs. A replay does not call it.
  using Body = std::function<StepVector(const std::vector<nn::Microbatch>& batches)>;
  // Runs the body over static copies of the microbatches, or replays it. Recaptures if the number or shape of the
  // microbatches has changed.
  StepVector train(const StepInput& input, const Body& body);
  StepVector evaluate(const std::vector<nn::Microbatch>& batches, bool stop, const Body& body);
  // Timers of the current step, for the body, which must dereference them on every replay. Null if timers cannot be
  // used.
  Timers* const* timers() const { return has_timers_ ? &timers_ : nullptr; }
  // True while a body is being captured; waiting for the device is then illegal.
  bool capturing() const;

  struct Sizes {
    graph::GraphSize training, evaluation;
    int64_t static_inputs = 0;  // bytes
    graph::GraphPool::Bytes pool;
  };
  Sizes sizes() const;

 private:
  struct CapturedStep;
  StepVector run(CapturedStep& one, const std::vector<nn::Microbatch>& batches, bool stop, const Body& body);

  const ProcessContext& process_;
  RankModel& model_;
  StepBuffers& step_buffers_;
  std::shared_ptr<graph::GraphPool> pool_;
  std::unique_ptr<CapturedStep> training_, evaluation_;
  bool has_timers_;           // false on a GPU: timers would synchronize the device, which a capture forbids
  Timers* timers_ = nullptr;  // of the current step
};

}  // namespace metroplex::step

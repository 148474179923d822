// The whole step as one graph (train.cuda_graph_impl: full_iteration): all microbatches and chunks of a rank, its
// sends and receives, gradient reduction, clipping, the decision to update, the optimizer, gathering of parameters.
// Two graphs per rank, for training and for evaluation, share a pool; the first steps of each run eagerly.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cuda/graph/graph.h"
#include "nn/microbatch.h"
#include "train/step_vector.h"

namespace metroplex::train {

struct Assembly;
struct StepInput;
class Timers;

class StepGraphs {
 public:
  // `assembly` outlives it, and its target has device.recorder().
  StepGraphs(Assembly& assembly, cuda::GraphDevice& device);
  ~StepGraphs();

  // What a graph captures: all of a step behind write_step_inputs. Where it replays, the body is not called.
  using Body = std::function<StepVector(const std::vector<nn::Microbatch>& batches)>;
  // One step: the body over static copies of the microbatches, or its replay. Where their number or form has changed
  // since the capture, it is captured again.
  StepVector train(const StepInput& input, const Body& body);
  StepVector evaluate(const std::vector<nn::Microbatch>& batches, bool stop, const Body& body);
  // The timers of the step under way, for the body: asked again in every replay. Null: it cannot use any.
  Timers* const* timers() const { return times_ ? &timers_ : nullptr; }
  // Whether a body is running for a capture: nobody may wait for the device then.
  bool capturing() const;

  struct Sizes {
    cuda::GraphSize training, evaluation;
    int64_t static_inputs = 0;  // bytes
    cuda::GraphPool::Bytes pool;
  };
  Sizes sizes() const;

 private:
  struct One;
  StepVector run(One& one, const std::vector<nn::Microbatch>& batches, bool stop, const Body& body);

  Assembly& a_;
  std::shared_ptr<cuda::GraphPool> pool_;
  std::unique_ptr<One> training_, evaluation_;
  bool times_;                // timers wait for the device, which is not allowed while a GPU captures
  Timers* timers_ = nullptr;  // of the step under way
};

}  // namespace metroplex::train

// The whole step as one graph (train.cuda_graph_impl: full_iteration): all microbatches and chunks of a rank, what it
// sends and receives, reduction, clipping, the verdict, the optimizer, gathering of parameters. Two graphs a rank,
// one of training and one of evaluation, that share a pool; the first steps of each run as they are.
#pragma once

#include <memory>
#include <vector>

#include "cuda/graph/graph.h"
#include "nn/microbatch.h"
#include "train/step_vector.h"

namespace metroplex::train {

struct Assembly;
struct StepInput;
struct EnqueuedStep;
class Timers;

class StepGraphs {
 public:
  // `assembly` outlives it, and its target has device.recorder().
  StepGraphs(Assembly& assembly, cuda::GraphDevice& device);
  ~StepGraphs();

  // As enqueue_step. Where the number or the form of the microbatches has changed since the capture, the step is
  // captured again.
  EnqueuedStep train(const StepInput& input);
  // What a step of evaluation leaves; `batches` and `stop` as in evaluate_step.
  StepVector evaluate(const std::vector<nn::Microbatch>& batches, bool stop);

  struct Sizes {
    cuda::GraphSize training, evaluation;
    int64_t static_inputs = 0;  // bytes
    cuda::GraphPool::Bytes pool;
  };
  Sizes sizes() const;

 private:
  struct One;
  StepVector run(One& one, const std::vector<nn::Microbatch>& batches, bool stop);

  Assembly& a_;
  std::shared_ptr<cuda::GraphPool> pool_;
  std::unique_ptr<One> training_, evaluation_;
  Timers* timers_ = nullptr;  // of the step under way
};

}  // namespace metroplex::train

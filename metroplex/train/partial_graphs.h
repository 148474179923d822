// Parts of layers as graphs (train.cuda_graph_impl: local, transformer_engine): which live set each microbatch of a
// step takes, and from which step on. The graphs themselves are the stages' (pipeline/stage_graphs.h); what is
// between them, and all else of a step, runs as it is.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "cuda/graph/graph.h"
#include "pipeline/stage_graphs.h"
#include "plan/graph_plan.h"

namespace metroplex::train {

struct Assembly;

class PartialGraphs {
 public:
  // Makes the stages of `assembly` capture on `device`; both outlive it, and the assembly's target has
  // device.recorder(). Before the first step. Throws as pipeline::check_capturable().
  PartialGraphs(Assembly& assembly, cuda::GraphDevice& device);

  // Calls `work` once, with the plan of the next step of training, or of evaluation, with this table; with null where
  // the step runs as it is: the first train.cuda_graph_warmup_steps of each (at least one), where captures will run,
  // and all evaluation with transformer_engine.
  void run(const plan::PipelineTable& table, const std::function<void(const plan::GraphPlan*)>& work);

  struct Sizes {
    pipeline::GraphSizes training, evaluation;  // gradients: in training
    int64_t planned = 0;                        // graphs for the last step of training
  };
  Sizes sizes() const;

 private:
  const plan::GraphPlan& plan_of(const plan::PipelineTable& table);

  Assembly& a_;
  cuda::GraphDevice& device_;
  std::shared_ptr<pipeline::GradientPlaces> gradients_;
  std::map<std::pair<int, bool>, plan::GraphPlan> plans_;  // (microbatches, forward_only)
  const plan::GraphPlan* last_training_ = nullptr;
  int64_t training_steps_ = 0, evaluation_steps_ = 0;
};

}  // namespace metroplex::train

// Parts of layers as graphs (train.cuda_graph_impl: local, transformer_engine): in which graph instance each pass of
// a step runs, and from which step on. All stages share the instances (pipeline/stage_graphs.h); everything else in a
// step runs eagerly.
#pragma once

#include <map>
#include <memory>

#include "cuda/graph/graph.h"
#include "pipeline/executor.h"
#include "pipeline/stage_graphs.h"
#include "plan/graph_plan.h"

namespace metroplex::train {

struct Assembly;

class PartialGraphs {
 public:
  // Makes the stages of `assembly` capture on `device`; both outlive it, and the assembly's target has
  // device.recorder(). Before the first step. Throws as pipeline::check_capturable().
  PartialGraphs(Assembly& assembly, cuda::GraphDevice& device);

  // Sets how this run takes the graphs: by the plan of its table, or eagerly. Eager are the first
  // train.cuda_graph_warmup_steps of training and of evaluation (at least one each), on the stream of the captures,
  // every evaluation with transformer_engine, steps that run again because rows of experts found no room, and runs
  // that are `eager`.
  void take_part(pipeline::PipelineInput& run, bool eager);

  struct Sizes {
    pipeline::GraphSizes training, evaluation;  // gradients: in training
    int64_t planned = 0;                        // graphs for the last step of training
  };
  Sizes sizes() const;

 private:
  const plan::GraphPlan& plan_of(const plan::PipelineTable& table);

  Assembly& a_;
  cuda::GraphDevice& device_;
  std::shared_ptr<pipeline::GraphInstances> instances_;
  std::map<std::pair<int, bool>, plan::GraphPlan> plans_;  // (microbatches, forward_only)
  const plan::GraphPlan* last_training_ = nullptr;
  int64_t training_steps_ = 0, evaluation_steps_ = 0;
};

}  // namespace metroplex::train

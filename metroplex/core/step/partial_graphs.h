// CUDA graphs of parts of layers (train.cuda_graph_impl: local, transformer_engine). Decides which graph instance
// each pass of a step uses, and from which step on. All stages share the instances (pipeline/stage_graphs.h). The
// rest of a step runs eagerly.
#pragma once

#include <map>
#include <memory>

#include "graph/graph.h"
#include "pipeline/executor.h"
#include "pipeline/stage_graphs.h"
#include "plan/graph_plan.h"
#include "step/rank_model.h"

namespace metroplex::step {

class PartialGraphs {
 public:
  // Makes the stages of `model` capture on `device`. The arguments must outlive this object. The target of the
  // process must use device.recorder(). Construct before the first step. Throws like pipeline::check_capturable().
  PartialGraphs(const ProcessContext& process, const RankModel& model, graph::GraphDevice& device);

  // Sets how this run uses the graphs: by the plan of its table, or eagerly on the capture stream. Eager are the
  // first train.cuda_graph_warmup_steps of training and of evaluation (at least one each). Runs with `eager`, and
  // steps repeated after a buffer overflow, are also eager. With transformer_engine, evaluations use neither graphs
  // nor the capture stream.
  void select_graphs(pipeline::PipelineInput& run, bool eager);

  struct Sizes {
    pipeline::GraphSizes training, evaluation;  // gradients: in training only
    int64_t planned = 0;                        // graphs that the plan of the last training step needs
  };
  Sizes sizes() const;

 private:
  const plan::GraphPlan& find_plan(const plan::PipelineTable& table);

  const ProcessContext& process_;
  const RankModel& model_;
  graph::GraphDevice& device_;
  std::shared_ptr<pipeline::GraphInstances> instances_;
  std::map<std::pair<int, bool>, plan::GraphPlan> plans_;  // (microbatches, forward_only)
  const plan::GraphPlan* last_training_ = nullptr;
  int64_t training_steps_ = 0, evaluation_steps_ = 0;
};

}  // namespace metroplex::step

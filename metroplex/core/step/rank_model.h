// The part of the model that one rank holds: its stages, their tensors and shards, and the executor that runs them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "distributed/families.h"
#include "moe/context.h"
#include "nn/rounding_meter.h"
#include "optim/clip.h"
#include "pipeline/executor.h"
#include "pipeline/stage.h"
#include "plan/layout.h"
#include "plan/pipeline_table.h"
#include "step/process_context.h"
#include "step/sharing.h"

namespace metroplex::step {

struct RankModel {
  std::vector<plan::StageLayers> layers;                 // one entry per stage, in model order
  std::vector<std::unique_ptr<pipeline::Stage>> stages;  // one per chunk of this rank
  std::vector<nn::Param*> params;                        // all stages, in forward order; a shared parameter once
  std::vector<nn::Param*> in_families;                   // the params whose values are not stored as codes
  std::vector<SharedParam> shared;                       // the subset of params that other stages or chunks also hold
  std::unique_ptr<pipeline::Executor> executor;

  std::optional<moe::ExpertContext> experts;  // only for MoE models; has a load meter if the run reports expert loads

  std::shared_ptr<nn::RoundingMeter> rounding_meter;  // only if operands are rounded; null in a forward-only assembly
  std::vector<nn::Buffer*> buffers;                   // non-trainable state of all stages
  std::vector<at::Tensor> step_counts;                // zeroed at the start of each training step
  config::Sharding sharding;                          // default (no sharding) in a forward-only assembly
  distributed::ParamFamilies families;
  std::vector<std::unique_ptr<nn::StageObserver>> gathers;   // one per stage; null if nothing is gathered
  std::vector<std::unique_ptr<nn::StageObserver>> rounders;  // one per stage
  std::vector<distributed::Shard> slices;  // this rank's shards of the weights; forward-only: whole local tensors

  // The microbatches of a step differ in length. True with context_parallel_token_slack or hybrid context
  // parallelism; callers may set it before a step.
  bool variable_lengths = false;
  std::vector<pipeline::BorderValue> extra_border_values;  // extra values passed between stages, for custom models

  int64_t values_bytes() const;  // permanent memory of the parameters' values and rounded values

  // Returns the schedule for this number of microbatches. Builds and verifies it on the first call and caches it.
  const plan::PipelineTable& table(const config::Parallel& parallel, int num_microbatches, bool forward_only);
  // Replaces the table of training steps with this number of microbatches. Only for traces of one rank without peers.
  void set_table(plan::PipelineTable table);

 private:
  std::map<std::pair<int, bool>, plan::PipelineTable> tables_;
};

// The tensors that cross stage borders for a microbatch of this shape.
pipeline::BorderShape border_shape(const ProcessContext& process, const RankModel& model,
                                   const nn::Microbatch& batch);

// Shards whose norms are computed together, one entry per family; without frozen families for gradients.
std::vector<optim::NormFamily> param_norm_parts(const ProcessContext& process, const RankModel& model);
std::vector<optim::NormFamily> gradient_norm_parts(const ProcessContext& process, const RankModel& model);

}  // namespace metroplex::step

// Builds the complete training state of one rank from a resolved config and a World.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "comm/world.h"
#include "config/config.h"
#include "graph/graph.h"
#include "distributed/families.h"
#include "files/file_system.h"
#include "models/registry.h"
#include "moe/context.h"
#include "optim/clip.h"
#include "optim/grad_scaler.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/param_groups.h"
#include "optim/step_state.h"
#include "pipeline/executor.h"
#include "pipeline/stage.h"
#include "plan/layout.h"
#include "plan/pipeline_table.h"
#include "step/loss_terms.h"
#include "step/sharing.h"

namespace metroplex::step {

class PartialGraphs;
class StepGraphs;

struct Assembly {
  Assembly();
  ~Assembly();

  config::Config config;  // resolved
  // Exists only with train.cuda_graph_impl: the device that captures graphs, and the World whose calls it records.
  // They are declared first because all later members refer to them.
  std::unique_ptr<graph::GraphDevice> graph_device;
  std::optional<comm::World> recorded_world;
  const comm::World* world;
  at::ScalarType dtype;
  int64_t vocab_size;  // without padding

  plan::StagePlacement placement;                        // pipeline rank and chunk of each stage
  std::vector<plan::StageLayers> layers;                 // one entry per stage, in model order
  std::vector<std::unique_ptr<pipeline::Stage>> stages;  // one per chunk of this rank
  std::vector<nn::Param*> params;                        // all stages, in forward order; a shared parameter once
  std::vector<SharedParam> shared;                       // the subset of params that other stages or chunks also hold
  std::unique_ptr<pipeline::Executor> executor;

  std::optional<moe::ExpertContext> experts;  // only for MoE models; has a load meter if the run reports expert loads

  std::vector<nn::Buffer*> buffers;     // non-trainable state of all stages
  std::vector<at::Tensor> step_counts;  // zeroed at the start of each training step
  config::Sharding sharding;            // default (no sharding) in a forward-only assembly
  distributed::ParamFamilies families;
  std::vector<std::unique_ptr<nn::StageObserver>> gathers;  // one per stage; null if nothing is gathered
  std::vector<distributed::Shard> slices;   // this rank's shards of the weights; forward-only: whole local tensors
  std::vector<distributed::Shard> trained;  // the subset of slices that is not frozen, with gradients
  // Null or empty in a forward-only assembly.
  std::unique_ptr<optim::ParamGroups> param_groups;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::LrSchedule> schedule;
  std::optional<optim::GradScaler> scaler;  // update rule of the loss scale; the scale itself is in `step`
  optim::StepState step;                    // loss scale and step decisions, on the device
  optim::RateTable rates;                   // learning rates of the next steps, on the device
  int64_t steps = 0;                        // number of updates, as of the last outcome that the host has read

  // The microbatches of a step differ in length. True with context_parallel_token_slack or hybrid context
  // parallelism; callers may set it before a step.
  bool variable_lengths = false;
  std::vector<pipeline::BorderValue> extra_border_values;  // extra values passed between stages, for custom models

  LossTermNames loss_terms;  // same on all ranks; set in the first step
  // Buffers of the current step at fixed addresses. step_inputs holds the values that the host writes before the step
  // (step_vector.h). loss_factors [microbatches] double scales the summed loss of each microbatch.
  at::Tensor step_inputs, loss_factors;
  at::Tensor step_flags;  // [kernels::kStepFlags] int32: set by layers, read by judge_step

  std::unique_ptr<StepGraphs> graphs;             // CUDA graphs of whole steps; null: steps run eagerly
  std::unique_ptr<PartialGraphs> partial_graphs;  // CUDA graphs of parts of layers; null: none

  // Input of one executor run over `batches`, which must outlive it. Picks the schedule for that number of
  // microbatches and, unless `eager`, the applicable partial graphs. loss_gradients is undefined for evaluation.
  pipeline::PipelineInput pipeline_input(const std::vector<nn::Microbatch>& batches, at::Tensor loss_gradients,
                                         bool forward_only, bool eager = false);

  const comm::Groups& groups() const { return world->groups(); }
  // The pp rank of the last stage, which computes the loss.
  int last_stage_rank() const { return placement.place_of(placement.stages() - 1).rank; }
  bool last_stage() const { return groups().pp.index() == last_stage_rank(); }

  std::vector<optim::NormFamily> norm_parts() const;      // one per family
  std::vector<optim::NormFamily> gradient_parts() const;  // the same without frozen families

  // Returns the schedule for this number of microbatches. Builds and verifies it on the first call and caches it.
  const plan::PipelineTable& table(int num_microbatches, bool forward_only);
  pipeline::BorderShape border(const nn::Microbatch& batch) const;

 private:
  std::map<std::pair<int, bool>, plan::PipelineTable> tables_;
};

using StageBuilder = std::function<nn::Blocks(const models::ModelContext& context, const models::StageSpec& slice)>;

// `sampled` samples values by the configured initialization. `loaded` fills zeros and ones, for callers that load
// every parameter before use. Loading is faster than sampling billions of values.
enum class InitialValues { sampled, loaded };

// forward_only: no gradients and no optimizer, for evaluation and generation. vocab_size comes from the tokenizer or
// the config. `config` must be resolved and checked for world.size() ranks. `build` replaces models::build_stage for
// a model outside the config's families. `disk` reads the trace of model.moe_router_force_trace and writes the files
// of model.moe_echo_dump_dir; null: the local file system. Collective.
std::unique_ptr<Assembly> assemble(const config::Config& config, const comm::World& world, int64_t vocab_size,
                                   bool forward_only = false, const StageBuilder& build = models::build_stage,
                                   files::FileSystem* disk = nullptr, InitialValues values = InitialValues::sampled);

at::ScalarType scalar_type(config::ParamsDtype params_dtype);

}  // namespace metroplex::step

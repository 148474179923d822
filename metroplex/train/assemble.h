// Builds everything that a rank needs to train from a resolved config and a World: the one place where all rooms
// meet.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "comm/world.h"
#include "config/config.h"
#include "cuda/graph/graph.h"
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
#include "text/tokenizer_files.h"
#include "train/loss_terms.h"
#include "train/sharing.h"

namespace metroplex::train {

class PartialGraphs;
class StepGraphs;

struct Assembly {
  Assembly();
  ~Assembly();

  config::Config config;  // resolved
  // With train.cuda_graph_impl: the device that captures, and the world whose calls it records. Declared first, as
  // everything below refers to them.
  std::unique_ptr<cuda::GraphDevice> graph_device;
  std::optional<comm::World> recorded_world;
  const comm::World* world;
  at::ScalarType dtype;
  int64_t vocab_size;                                     // unpadded
  std::shared_ptr<const text::TokenizerFiles> tokenizer;  // saved with checkpoints; null: unknown

  plan::StagePlacement placement;                        // of the stages of the model
  std::vector<plan::StageLayers> layers;                 // one entry a stage, in model order
  std::vector<std::unique_ptr<pipeline::Stage>> stages;  // one a chunk of this rank
  std::vector<nn::Param*> params;                        // of all stages, forward order, a shared one once
  std::vector<SharedParam> shared;                       // of these, those that other stages or chunks hold too
  std::unique_ptr<pipeline::Executor> executor;

  std::optional<moe::ExpertContext> experts;  // of a model with experts; with a load meter where the run reports load

  std::vector<nn::Buffer*> buffers;                         // state without gradient, of all stages
  std::vector<at::Tensor> step_counts;                      // zeroed when a training step begins
  config::Sharding sharding;                                // nothing in a forward-only assembly
  distributed::ParamFamilies families;                      // with values and gradients
  std::vector<std::unique_ptr<nn::StageObserver>> gathers;  // one a stage; null where nothing is gathered
  std::vector<distributed::Slice> slices;   // this rank's share of the weights; forward-only: all it has
  std::vector<distributed::Slice> trained;  // those of parameters that are not frozen, with gradients
  // Null or empty in a forward-only assembly.
  std::unique_ptr<optim::ParamGroups> param_groups;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::LrSchedule> schedule;
  std::optional<optim::GradScaler> scaler;  // the rule of the loss scale, which lies in `step`
  optim::StepState step;                    // loss scale and decisions of a step, on the device
  optim::RateTable rates;                   // of the next steps, on the device
  int64_t steps = 0;                        // that updated, as far as the host has read outcomes

  // Microbatches of a step differ in length: with a slack of tokens of context-parallel ranks, or whatever sets it
  // before a step.
  bool variable_lengths = false;
  std::vector<pipeline::BorderValue> also_crosses;  // stage borders, with the hidden states; for other models

  LossTermNames loss_terms;  // of all ranks, once a step has been taken
  // Of the current step, at fixed addresses: what the host writes before it (step_vector.h), and the factor of each
  // microbatch's summed loss, [microbatches] double.
  at::Tensor step_inputs, loss_factors;
  at::Tensor step_flags;  // [cuda::kernels::kStepFlags] int32: raised by layers, which hold it; judge_step reads them

  std::unique_ptr<StepGraphs> graphs;             // of whole steps; null: steps run eagerly
  std::unique_ptr<PartialGraphs> partial_graphs;  // of parts of layers; null: these run eagerly

  // For one run of the executor over `batches`, which outlive it: by the table for their number, with the graphs of
  // parts of layers that are due, unless `eager`. For an evaluation loss_gradients are undefined.
  pipeline::PipelineInput pipeline_input(const std::vector<nn::Microbatch>& batches, at::Tensor loss_gradients,
                                         bool forward_only, bool eager = false);

  const comm::Groups& groups() const { return world->groups(); }
  // The pp rank that holds the last stage, which makes the loss.
  int last_stage_rank() const { return placement.place_of(placement.stages() - 1).rank; }
  bool last_stage() const { return groups().pp.index() == last_stage_rank(); }

  std::vector<optim::NormPart> norm_parts() const;      // one a family
  std::vector<optim::NormPart> gradient_parts() const;  // of those that are trained

  // The schedule for this many microbatches: built and verified once, then kept.
  const plan::PipelineTable& table(int num_microbatches, bool forward_only);
  pipeline::BorderShape border(const nn::Microbatch& batch) const;

 private:
  std::map<std::pair<int, bool>, plan::PipelineTable> tables_;
};

// Makes the blocks of one chunk.
using StageBuilder = std::function<nn::Blocks(const models::ModelContext& context, const models::StageSlice& slice)>;

// drawn: as config says. loaded: zeros and ones, as the caller loads every parameter before it uses one; drawing a
// billion numbers takes longer than reading them.
enum class FirstValues { drawn, loaded };

// forward_only: no gradients, no optimizer (evaluation, generation). vocab_size is the tokenizer's or the config's.
// Requires config resolved and checked for world.size() ranks. `build` is another than models::build_stage where the
// model is not config's family. `disk` has the trace of model.moe_router_force_trace and gets what
// model.moe_echo_dump_dir asks for; null: the machine's. Collective.
std::unique_ptr<Assembly> assemble(const config::Config& config, const comm::World& world, int64_t vocab_size,
                                   bool forward_only = false, const StageBuilder& build = models::build_stage,
                                   files::FileSystem* disk = nullptr, FirstValues values = FirstValues::drawn);

at::ScalarType scalar_type(config::ParamsDtype params_dtype);

}  // namespace metroplex::train

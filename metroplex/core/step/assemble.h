// Builds the complete training state of one rank from a resolved config and a World.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/world.h"
#include "config/config.h"
#include "files/file_system.h"
#include "models/registry.h"
#include "pipeline/executor.h"
#include "step/optimization.h"
#include "step/process_context.h"
#include "step/rank_model.h"
#include "step/step_vector.h"

namespace metroplex::step {

class PartialGraphs;
class StepGraphs;

// CUDA graphs of this rank, of at most one kind. Without any, steps run eagerly.
struct CapturedGraphs {
  std::unique_ptr<StepGraphs> step;        // of whole steps
  std::unique_ptr<PartialGraphs> partial;  // of parts of layers
};

// Functions take only the parts that they use. Later members refer to earlier ones.
struct Assembly {
  Assembly();
  ~Assembly();

  ProcessContext process;
  RankModel model;
  Optimization optimization;
  StepBuffers step_buffers;
  CapturedGraphs graphs;

  // Runs the pipeline over `batches`: forward, and backward unless `loss_gradients` [microbatches] is undefined.
  // Picks the schedule for that number of microbatches and, unless `eager`, the applicable partial graphs.
  // Collective.
  pipeline::PipelineOutput run_pipeline(const std::vector<nn::Microbatch>& batches,
                                        const at::Tensor& loss_gradients = {}, bool eager = false);
};

using StageBuilder = std::function<nn::Blocks(const models::ModelContext& context, const models::StageSpec& slice)>;

// `sampled` samples values by the configured initialization. `loaded` fills zeros and ones, for callers that load
// every parameter before use. Loading is faster than sampling billions of values.
enum class InitialValues { sampled, loaded };

// forward_only: no gradients and no optimizer, for evaluation and generation. vocab_size comes from the tokenizer or
// the config. `config` must be resolved and checked for world.size() ranks. `build` replaces models::build_stage for
// a model outside the config's families. `disk` reads the trace of model.moe_router_force_trace and writes the files
// of model.moe_echo_dump_dir; null: the local file system. `other_stages`: for a rank that is traced alone.
// Collective.
std::unique_ptr<Assembly> assemble(const config::Config& config, const comm::World& world, int64_t vocab_size,
                                   bool forward_only = false, const StageBuilder& build = models::build_stage,
                                   files::FileSystem* disk = nullptr, InitialValues values = InitialValues::sampled,
                                   const std::vector<distributed::FamilyKey>& other_stages = {});

at::ScalarType scalar_type(config::ParamsDtype params_dtype);

}  // namespace metroplex::step

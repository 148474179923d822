#include "step/assemble.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "comm/collectives.h"
#include "config/derived.h"
#include "config/experts.h"
#include "config/optim.h"
#include "models/multi_token.h"
#include "models/registry.h"
#include "moe/load_meter.h"
#include "moe/paged_stash.h"
#include "nn/param_init.h"
#include "plan/schedules/registry.h"
#include "plan/verify.h"
#include "step/replica_dump.h"
#include "step/forced_loads.h"
#include "step/freezing.h"
#include "step/hybrid_batch.h"
#include "step/partial_graphs.h"
#include "step/run_length.h"
#include "step/stage_loads.h"
#include "step/step_graphs.h"

namespace metroplex::step {

at::ScalarType scalar_type(config::ParamsDtype params_dtype) {
  switch (params_dtype) {
    case config::ParamsDtype::fp32:
      return at::kFloat;
    case config::ParamsDtype::fp64:
      return at::kDouble;
    case config::ParamsDtype::bf16:
      return at::kBFloat16;
    case config::ParamsDtype::fp16:
      return at::kHalf;
  }
  MPX_ASSERT(false, "params_dtype ", config::text_of(params_dtype));
}

Assembly::Assembly() = default;
Assembly::~Assembly() = default;

const plan::PipelineTable& Assembly::table(int num_microbatches, bool forward_only) {
  const auto key = std::make_pair(num_microbatches, forward_only);
  const auto found = tables_.find(key);
  if (found != tables_.end()) return found->second;
  plan::ScheduleRequest request =
      plan::schedule_request(config.parallel, static_cast<int>(stages.size()), num_microbatches);
  request.forward_only = forward_only;
  plan::PipelineTable table = plan::build_schedule(config.parallel.pipeline_schedule, request);
  plan::verify(table);
  return tables_.emplace(key, std::move(table)).first->second;
}

pipeline::BorderShape Assembly::border(const nn::Microbatch& batch) const {
  const int64_t parts = config.parallel.sequence_parallel ? config.parallel.tp() : 1;
  const int64_t s = batch.tokens.size(1);
  MPX_CHECK(s % parts == 0, "config", "a sequence of ", s, " tokens is not a multiple of tp = ", parts,
            ", which parallel.sequence_parallel needs; pad it or turn that off");
  const bool wide = config.precision.fp32_residual_connection && config.precision.half();
  pipeline::BorderValue hidden{
      nn::kHiddenStates, {s / parts, batch.tokens.size(0), config.model.hidden_size}, wide ? at::kFloat : dtype};
  const auto predicts = std::find_if(layers.begin(), layers.end(),
                                     [](const plan::StageLayers& stage) { return stage.num_mtp_layers > 0; });
  if (predicts != layers.end()) hidden.end = static_cast<int>(predicts - layers.begin());
  pipeline::BorderShape border{{hidden}, variable_lengths};
  if (predicts != layers.end()) {  // from here on, the normed outputs of the MTP layers, as input of the head
    hidden.dtype = dtype;
    hidden.first = std::exchange(hidden.end, pipeline::BorderValue{}.end);
    border.values.push_back(hidden);
    for (int64_t depth = 1; depth <= config.model.mtp_num_layers && models::has_predictions(batch); ++depth) {
      hidden.name = models::predicted_name(depth);
      border.values.push_back(hidden);
    }
  }
  border.values.insert(border.values.end(), extra_border_values.begin(), extra_border_values.end());
  return border;
}

pipeline::PipelineInput Assembly::pipeline_input(const std::vector<nn::Microbatch>& batches,
                                                 at::Tensor loss_gradients, bool forward_only, bool eager) {
  pipeline::PipelineInput run{table(static_cast<int>(batches.size()), forward_only), batches,
                              std::move(loss_gradients), border(batches.at(0))};
  if (partial_graphs) partial_graphs->select_graphs(run, eager);
  return run;
}

static std::vector<optim::NormFamily> build_norm_parts(const Assembly& assembly, bool frozen_too) {
  std::vector<optim::NormFamily> parts;
  for (const distributed::ParamFamily& family : assembly.families.all()) {
    if (family.key.frozen && !frozen_too) continue;
    parts.push_back({family.slices,
                     {assembly.world->coordinates(), family.model_parallel, family.data_parallel.shard,
                      assembly.world->target()}});
  }
  return parts;
}

std::vector<optim::NormFamily> Assembly::norm_parts() const { return build_norm_parts(*this, true); }
std::vector<optim::NormFamily> Assembly::gradient_parts() const { return build_norm_parts(*this, false); }

namespace {

models::ModelContext model_context(const Assembly& assembly) {
  const config::Config& config = assembly.config;
  models::ModelContext context(config.model);
  context.vocab_size = assembly.vocab_size;
  context.positions = assembly.config.train.seq_length;
  context.label_smoothing = config.train.label_smoothing;
  nn::set_tensor_parallel(context, assembly.groups().tp, config.parallel.sequence_parallel);
  context.cp = assembly.groups().cp;
  context.cp_a2a = assembly.groups().cp_a2a, context.cp_p2p = assembly.groups().cp_p2p;
  context.cp_comm_types = config::cp_comm_types(config.parallel);
  if (config.parallel.hybrid_context_parallel) context.cp_by_size = hybrid_groups(*assembly.world);
  if (assembly.experts) context.experts = *assembly.experts;
  context.peft = config.peft;
  context.dtype = assembly.dtype;
  context.target = assembly.world->target();
  context.fp32_residual_connection = config.precision.fp32_residual_connection;
  context.seed = static_cast<uint64_t>(config.run.seed);
  if (config.model.sharded_initialization) {
    const topology::Coordinates at = assembly.world->coordinates();
    // Holders of a shared parameter sample different values; share_values() copies the owner's (step/sharing.h).
    context.streams = nn::make_init_streams(nn::rng_seeds(context.seed, nn::RngRanks{at.tp, at.pp, at.ep, at.etp}));
  }
  return context;
}

// Counts the MoE layers of a stage whose expert rows are saved from forward to backward.
int count_saved_row_layers(const pipeline::StageSaving& saving, const nn::Blocks& blocks) {
  int layers = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const auto& segments = blocks[b].segments;
    const bool experts = std::any_of(segments.begin(), segments.end(), [](const auto& segment) {
      return segment->traits().module == config::CudaGraphModule::moe;
    });
    const bool recomputed =
        std::any_of(saving.recomputed.begin(), saving.recomputed.end(),
                    [&](const nn::RecomputedChunk& chunk) { return chunk.begin <= b && b < chunk.end; });
    layers += experts && !recomputed ? 1 : 0;
  }
  return layers;
}

// Returns the maximum number of layers whose rows are saved at one time, in the longest step. layers: per chunk.
int64_t max_saved_layers(Assembly& assembly, const std::vector<int>& layers) {
  const plan::MicrobatchSchedule schedule = microbatch_schedule(assembly.config, assembly.groups().dp.size());
  int64_t samples = assembly.config.train.global_batch_size;
  for (const auto& [from, size] : schedule.thresholds()) samples = std::max(samples, size);
  const int64_t count = samples / (assembly.config.train.micro_batch_size * assembly.groups().dp.size());
  int64_t now = 0, most = 0;
  const plan::PipelineTable& table = assembly.table(static_cast<int>(std::max<int64_t>(1, count)), false);
  for (const plan::Action& action : table.ranks[static_cast<size_t>(assembly.groups().pp.index())]) {
    const int of_chunk = layers[static_cast<size_t>(action.chunk)];
    if (action.kind == plan::ActionKind::forward) now += of_chunk;
    if (action.kind == plan::ActionKind::backward) now -= of_chunk;
    most = std::max(most, now);
  }
  return most;
}

// Sizes the paged stash: pages for a balanced load of all rows saved at one time, times the configured factors. The
// row capacity of the buffers is the upper limit.
void make_stash(Assembly& assembly, const std::vector<int>& layers) {
  if (!assembly.experts || !assembly.experts->stash) return;
  const config::Config& config = assembly.config;
  const config::Model& model = config.model;
  const int64_t parts = config.parallel.sequence_parallel ? config.parallel.tp() : 1,
                tokens = config.train.micro_batch_size * config.train.seq_length / (parts * config.parallel.cp()),
                at_once = max_saved_layers(assembly, layers);
  kernels::PageShape shape;
  shape.page_rows = model.moe_paged_stash_page_size;
  const int64_t even = at_once * shape.pages_of(config::even_rows(model, tokens, assembly.experts->etp)),
                most = at_once * shape.pages_of(config::rank_capacity(model, tokens, assembly.experts->etp,
                                                                      assembly.experts->ep));
  const auto times = [&](double factor) {
    return static_cast<int64_t>(std::min(std::ceil(factor * static_cast<double>(even)), static_cast<double>(most)));
  };
  shape.device_pages = times(model.moe_paged_stash_buffer_size_factor_cuda);
  shape.host_pages = std::min(times(model.moe_paged_stash_buffer_size_factor_cpu), most - shape.device_pages);
  assembly.experts->stash->make(shape, even);
  assembly.step_counts.push_back(assembly.experts->stash->state());
}

// Builds this rank's chunks and collects their parameters. Returns the number of new parameters per block.
std::vector<size_t> build_stages(Assembly& assembly, models::ModelContext context, const StageBuilder& build) {
  const config::Memory& memory = assembly.config.memory;
  const auto store = nn::make_activation_store(memory, assembly.world->target());
  context.saving = nn::save_policy(memory, store);
  std::vector<size_t> units;
  std::vector<ChunkParams> chunks;
  std::vector<int> saved_row_layers;
  for (size_t stage_index = 0; stage_index < assembly.layers.size(); ++stage_index) {
    const plan::StageLayers& slice = assembly.layers[stage_index];
    if (slice.pp_rank != assembly.groups().pp.index()) continue;
    chunks.push_back({static_cast<int64_t>(stage_index), {}});
    nn::Blocks blocks = build(context, {slice.first_layer, slice.num_layers, slice.has_embedding, slice.has_loss,
                                        slice.num_mtp_layers > 0});
    auto saving = pipeline::stage_saving(memory, blocks, assembly.groups().tp, store);
    saved_row_layers.push_back(count_saved_row_layers(saving, blocks));
    assembly.stages.push_back(std::make_unique<pipeline::Stage>(std::move(blocks), std::move(saving)));
    for (const nn::Block& block : assembly.stages.back()->blocks()) {
      const size_t before = assembly.params.size();
      for (nn::Param* param : nn::list_params(block)) {
        if (std::find(assembly.params.begin(), assembly.params.end(), param) != assembly.params.end()) continue;
        assembly.params.push_back(param);
        chunks.back().params.push_back(param);
      }
      units.push_back(assembly.params.size() - before);
      for (const auto& segment : block.segments) {
        segment->collect_buffers(assembly.buffers);
        segment->collect_step_counts(assembly.step_counts);
      }
    }
  }
  for (const nn::Buffer* buffer : assembly.buffers) assembly.step_counts.push_back(buffer->pending);
  make_stash(assembly, saved_row_layers);
  assembly.shared = find_shared(*assembly.world, chunks);
  std::vector<const nn::Blocks*> all;
  for (const auto& stage : assembly.stages) all.push_back(&stage->blocks());
  nn::count_uses(all);
  return units;
}

void make_families(Assembly& assembly, std::vector<size_t> units, bool forward_only) {
  distributed::FamilyOptions options;
  options.parallel = &assembly.config.parallel;
  options.sharding = assembly.sharding;
  options.forward_only = forward_only;
  options.gradients_as_params = assembly.config.precision.main_grads_dtype == config::MainGradsDtype::params;
  options.device = assembly.world->device();
  options.units = std::move(units);
  assembly.families = distributed::ParamFamilies(*assembly.world, assembly.params, options);
  assembly.slices = assembly.families.slices();
  if (!forward_only) {
    std::copy_if(assembly.slices.begin(), assembly.slices.end(), std::back_inserter(assembly.trained),
                 [](const distributed::Shard& slice) { return !slice.param->frozen; });
  }
  for (const auto& stage : assembly.stages) {
    std::vector<std::vector<nn::Param*>> blocks;
    for (const nn::Block& block : stage->blocks()) blocks.push_back(nn::list_params(block));
    assembly.gathers.push_back(assembly.families.make_gather(blocks));
    if (assembly.gathers.back()) stage->add_observer("parameter gather", *assembly.gathers.back());
  }
}

void make_optimizer(Assembly& assembly) {
  assembly.param_groups = std::make_unique<optim::ParamGroups>(assembly.config.optim, assembly.params);
  optim::OptimizerContext context;
  context.groups = assembly.param_groups.get();
  context.axes = assembly.groups();
  context.target = assembly.world->target();
  context.find_shard_group = [&](const nn::Param& param) { return assembly.families.of(param).data_parallel.shard; };
  context.seed = static_cast<uint64_t>(assembly.config.run.seed);
  assembly.optimizer = optim::make_optimizer(assembly.config.optim, assembly.trained, context);
}

}  // namespace

// Sets Assembly::world. All later groups and kernel targets use the recorded world, so that captures record their
// calls.
static void make_graph_device(Assembly& assembly, const comm::World& world) {
  assembly.world = &world;
  if (assembly.config.train.cuda_graph_impl == config::CudaGraphImpl::none || world.target().meta) return;
  assembly.graph_device = graph::make_graph_device(world.device());
  if (assembly.graph_device->recorder() == nullptr) return;
  assembly.recorded_world.emplace(world.recorded(*assembly.graph_device->recorder()));
  assembly.world = &*assembly.recorded_world;
}

static void make_graphs(Assembly& assembly, bool forward_only) {
  // Partial graphs are checked for training only (config/rules_graphs.cpp).
  if (assembly.graph_device && assembly.config.train.captures_parts() && !forward_only)
    assembly.partial_graphs = std::make_unique<PartialGraphs>(assembly, *assembly.graph_device);
  if (assembly.graph_device && assembly.config.train.cuda_graph_impl == config::CudaGraphImpl::full_iteration)
    assembly.graphs = std::make_unique<StepGraphs>(assembly, *assembly.graph_device);
}

std::unique_ptr<Assembly> assemble(const config::Config& config, const comm::World& requested_world,
                                   int64_t vocab_size, bool forward_only, const StageBuilder& build,
                                   files::FileSystem* file_system, InitialValues values) {
  files::PosixFileSystem local_disk;
  files::FileSystem& disk = file_system != nullptr ? *file_system : local_disk;
  auto a = std::make_unique<Assembly>();
  a->config = config;
  make_graph_device(*a, requested_world);
  const comm::World& world = *a->world;
  a->dtype = scalar_type(config.precision.params_dtype);
  a->vocab_size = vocab_size;
  a->variable_lengths = config.parallel.context_parallel_token_slack > 0 || config.parallel.hybrid_context_parallel;
  a->placement = plan::stage_placement(config.parallel);
  a->layers = plan::split_stages(config.parallel, config.model.num_layers, config.model.mtp_num_layers);
  if (!forward_only) a->sharding = config.parallel.sharding();
  a->step_flags =
      at::zeros({kernels::kStepFlags}, at::TensorOptions().dtype(at::kInt).device(world.target().memory()));
  if (config.model.has_experts()) {
    a->experts = moe::expert_context(world, config);
    a->experts->forced_loads = forced_loads(config.model, *a->experts, disk);
    a->experts->step_flags = a->step_flags;
    a->experts->buffers = std::make_shared<moe::StaticBuffers>();
    if (config.model.moe_paged_stash && !forward_only)
      a->experts->stash =
          std::make_shared<moe::PagedStash>(world.target(), a->experts->step_flags.narrow(0, kernels::kOverflow, 1));
    if (!config.model.moe_echo_dump_dir.empty() && !world.target().meta)
      a->experts->on_replica_plan =
          make_plan_writer(disk, config.model.moe_echo_dump_dir, world.rank(), world.target());
  }
  if (!forward_only && needs_expert_loads(config))
    a->experts->meter = std::make_shared<moe::LoadMeter>(config.model.num_moe_experts, world.target());
  models::ModelContext context = model_context(*a);
  context.deferred = a->sharding.gathers_units();
  if (values == InitialValues::loaded) context.init_std = 0;
  std::vector<size_t> units = build_stages(*a, context, build);
  check_name_patterns(*a);
  if (!forward_only) freeze(*a);
  std::vector<pipeline::Stage*> stages;
  for (const auto& stage : a->stages) stages.push_back(stage.get());
  a->executor = std::make_unique<pipeline::Executor>(stages, a->groups().pp);
  make_families(*a, std::move(units), forward_only);
  if (context.streams && !a->shared.empty()) {
    share_values(a->shared, a->slices);
    a->families.loaded();
    a->families.finish_gathers();  // later loads write to memory that an unfinished gather would read
  }
  make_graphs(*a, forward_only);
  if (forward_only) return a;

  make_optimizer(*a);
  a->scaler = optim::make_grad_scaler(config.precision);
  const size_t groups = a->param_groups->factors().size();
  kernels::StepValues start;
  if (a->scaler) optim::set_scaler_state(start, a->scaler->start());
  a->step = optim::StepState(world.target(), groups, start);
  a->rates = optim::RateTable(world.target(), groups, config.optim.adam_beta1, config.optim.adam_beta2);
  const config::Config lengths = convert_to_samples(config, microbatch_schedule(config, a->groups().dp.size()));
  a->schedule = std::make_unique<optim::LrSchedule>(optim::schedule_args(lengths));
  return a;
}

}  // namespace metroplex::step

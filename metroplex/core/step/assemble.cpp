#include "step/assemble.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "comm/collectives.h"
#include "config/derived.h"
#include "config/experts.h"
#include "config/optim.h"
#include "models/registry.h"
#include "moe/load_meter.h"
#include "moe/paged_stash.h"
#include "nn/param_init.h"
#include "nn/rounded_weight.h"
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

pipeline::PipelineOutput Assembly::run_pipeline(const std::vector<nn::Microbatch>& batches,
                                                const at::Tensor& loss_gradients, bool eager) {
  const bool forward_only = !loss_gradients.defined(),
             measures = model.rounding_meter != nullptr && model.rounding_meter->measures();
  for (const nn::Param* param : model.params)
    if (param->rounded) param->rounded->begin_run(*param, measures);
  pipeline::PipelineInput input{model.table(process.config.parallel, static_cast<int>(batches.size()), forward_only),
                                batches, loss_gradients, border_shape(process, model, batches.at(0))};
  if (graphs.partial) graphs.partial->select_graphs(input, eager);
  return model.executor->run(input);
}

namespace {

models::ModelContext model_context(const ProcessContext& process, const RankModel& model) {
  const config::Config& config = process.config;
  models::ModelContext context(config.model);
  context.vocab_size = process.vocab_size;
  context.positions = process.config.train.seq_length;
  context.label_smoothing = config.train.label_smoothing;
  context.loss_chunk_tokens = config.memory.loss_chunk_tokens;
  context.head_defers_weights = config.parallel.defer_embedding_wgrad_compute;
  nn::set_tensor_parallel(context, process.groups().tp, config.parallel.sequence_parallel);
  context.cp = process.groups().cp;
  if (config.precision.delays_scales()) {
    const topology::AxisSet stage = {topology::Axis::tp, topology::Axis::dp, topology::Axis::cp};
    context.tp_dp_cp = process.world->make_layer_group("tp-dp-cp", stage);
  }
  context.cp_a2a = process.groups().cp_a2a, context.cp_p2p = process.groups().cp_p2p;
  context.cp_comm_types = config::cp_comm_types(config.parallel);
  if (config.parallel.hybrid_context_parallel) context.cp_by_size = hybrid_groups(*process.world);
  if (model.experts) context.experts = *model.experts;
  context.peft = config.peft;
  context.precision = config.precision;
  context.rounding_meter = model.rounding_meter;
  context.dtype = process.dtype;
  context.target = process.world->target();
  context.fp32_residual_connection = config.precision.fp32_residual_connection;
  context.seed = static_cast<uint64_t>(config.run.seed);
  if (config.model.sharded_initialization) {
    const topology::Coordinates at = process.world->coordinates();
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
int64_t max_saved_layers(const ProcessContext& process, RankModel& model, const std::vector<int>& layers) {
  const plan::MicrobatchSchedule schedule = microbatch_schedule(process.config, process.groups().dp.size());
  int64_t samples = process.config.train.global_batch_size;
  for (const auto& [from, size] : schedule.thresholds()) samples = std::max(samples, size);
  const int64_t count = samples / (process.config.train.micro_batch_size * process.groups().dp.size());
  int64_t now = 0, most = 0;
  const plan::PipelineTable& table =
      model.table(process.config.parallel, static_cast<int>(std::max<int64_t>(1, count)), false);
  for (const plan::Action& action : table.ranks[static_cast<size_t>(process.groups().pp.index())]) {
    const int of_chunk = layers[static_cast<size_t>(action.chunk)];
    if (action.kind == plan::ActionKind::forward) now += of_chunk;
    if (action.kind == plan::ActionKind::backward) now -= of_chunk;
    most = std::max(most, now);
  }
  return most;
}

// Sizes the paged stash: pages for a balanced load of all rows saved at one time, times the configured factors. The
// row capacity of the buffers is the upper limit.
void make_stash(const ProcessContext& process, RankModel& model, const std::vector<int>& layers) {
  if (!model.experts || !model.experts->stash) return;
  const config::Config& config = process.config;
  const config::Model& keys = config.model;
  const int64_t parts = config.parallel.sequence_parallel ? config.parallel.tp() : 1,
                tokens = config.train.micro_batch_size * config.train.seq_length / (parts * config.parallel.cp()),
                at_once = max_saved_layers(process, model, layers);
  kernels::PageShape shape;
  shape.page_rows = keys.moe_paged_stash_page_size;
  const int64_t even = at_once * shape.pages_of(config::even_rows(keys, tokens, model.experts->etp)),
                most = at_once *
                       shape.pages_of(config::rank_capacity(keys, tokens, model.experts->etp, model.experts->ep));
  const auto times = [&](double factor) {
    return static_cast<int64_t>(std::min(std::ceil(factor * static_cast<double>(even)), static_cast<double>(most)));
  };
  shape.device_pages = times(keys.moe_paged_stash_buffer_size_factor_cuda);
  shape.host_pages = std::min(times(keys.moe_paged_stash_buffer_size_factor_cpu), most - shape.device_pages);
  model.experts->stash->make(shape, even);
  model.step_counts.push_back(model.experts->stash->state());
}

// Builds this rank's chunks and collects their parameters. Returns the number of new parameters in families per
// block.
std::vector<size_t> build_stages(const ProcessContext& process, RankModel& model, models::ModelContext context,
                                 const StageBuilder& build) {
  const config::Memory& memory = process.config.memory;
  const auto store = nn::make_activation_store(memory, process.world->target());
  context.saving = nn::save_policy(memory, store);
  std::vector<size_t> units;
  std::vector<ChunkParams> chunks;
  std::vector<int> saved_row_layers;
  for (size_t stage_index = 0; stage_index < model.layers.size(); ++stage_index) {
    const plan::StageLayers& slice = model.layers[stage_index];
    if (slice.pp_rank != process.groups().pp.index()) continue;
    chunks.push_back({static_cast<int64_t>(stage_index), {}});
    if (model.rounding_meter) model.rounding_meter->begin_stage(static_cast<int64_t>(stage_index));
    nn::Blocks blocks = build(context, {slice.first_layer, slice.num_layers, slice.has_embedding, slice.has_loss,
                                        slice.num_mtp_layers > 0});
    auto saving = pipeline::stage_saving(memory, blocks, process.groups().tp, store);
    saved_row_layers.push_back(count_saved_row_layers(saving, blocks));
    model.stages.push_back(std::make_unique<pipeline::Stage>(std::move(blocks), std::move(saving)));
    for (const nn::Block& block : model.stages.back()->blocks()) {
      const size_t before = model.params.size(), before_in_families = model.in_families.size();
      for (nn::Param* param : nn::list_params(block)) {
        if (std::find(model.params.begin(), model.params.end(), param) != model.params.end()) continue;
        model.params.push_back(param);
        if (!param->stored) model.in_families.push_back(param);
        chunks.back().params.push_back(param);
      }
      units.push_back(model.in_families.size() - before_in_families);
      for (size_t i = before; i < model.params.size(); ++i) {
        if (const auto& history = model.params[i]->operand_history) model.buffers.push_back(history.get());
      }
      for (const auto& segment : block.segments) {
        segment->collect_buffers(model.buffers);
        segment->collect_step_counts(model.step_counts);
      }
    }
  }
  for (const nn::Buffer* buffer : model.buffers) model.step_counts.push_back(buffer->pending);
  make_stash(process, model, saved_row_layers);
  model.shared = find_shared(*process.world, chunks);
  std::vector<const nn::Blocks*> all;
  for (const auto& stage : model.stages) all.push_back(&stage->blocks());
  nn::count_uses(all);
  return units;
}

void make_families(const ProcessContext& process, RankModel& model, Optimization& optimization,
                   std::vector<size_t> units, bool forward_only,
                   const std::vector<distributed::FamilyKey>& other_stages) {
  distributed::FamilyOptions options;
  options.other_stages = other_stages;
  options.parallel = &process.config.parallel;
  options.sharding = model.sharding;
  options.forward_only = forward_only;
  options.gradients_as_params = process.config.precision.main_grads_dtype == config::MainGradsDtype::params;
  options.device = process.world->device();
  options.units = std::move(units);
  model.families = distributed::ParamFamilies(*process.world, model.in_families, options);
  model.slices = model.families.slices();
  if (!forward_only) {
    std::copy_if(model.slices.begin(), model.slices.end(), std::back_inserter(optimization.trained),
                 [](const distributed::Shard& slice) { return !slice.param->frozen; });
  }
  for (const auto& stage : model.stages) {
    std::vector<std::vector<nn::Param*>> blocks;
    for (const nn::Block& block : stage->blocks()) blocks.push_back(nn::list_params(block));
    model.gathers.push_back(model.families.make_gather(blocks));
    if (model.gathers.back()) stage->add_observer("parameter gather", *model.gathers.back());
    model.rounders.push_back(std::make_unique<nn::WeightRounder>(std::move(blocks)));
    stage->add_observer("weight rounding", *model.rounders.back());  // reads gathered values
  }
}

// All later groups and kernel targets use the recorded world, so that captures record their calls.
void make_graph_device(ProcessContext& process, const comm::World& world) {
  process.world = &world;
  if (process.config.train.cuda_graph_impl == config::CudaGraphImpl::none || world.target().meta) return;
  if (world.device().is_cuda() && world.end_run()) {
    process.replay_watch = graph::make_replay_watch(
        world.device(), std::chrono::minutes(process.config.run.distributed_timeout_minutes), world.end_run());
  }
  process.graph_device = graph::make_graph_device(world.device(), process.replay_watch.get());
  device::Recorder* const recorder = process.graph_device->recorder();
  if (recorder == nullptr && !process.replay_watch) return;
  process.recorded_world.emplace(recorder != nullptr ? world.recorded(*recorder)
                                                     : world.with_recorded_groups(*process.replay_watch));
  process.world = &*process.recorded_world;
}

void make_experts(const ProcessContext& process, const at::Tensor& step_flags, bool forward_only,
                  files::FileSystem& disk, RankModel& model) {
  const config::Config& config = process.config;
  const device::Target& target = process.world->target();
  if (config.model.has_experts()) {
    moe::ExpertContext& experts = model.experts.emplace(moe::expert_context(*process.world, config));
    experts.forced_loads = forced_loads(config.model, experts, disk);
    experts.step_flags = step_flags;
    experts.buffers = std::make_shared<moe::StaticBuffers>();
    if (config.model.moe_paged_stash && !forward_only)
      experts.stash = std::make_shared<moe::PagedStash>(target, experts.step_flags.narrow(0, kernels::kOverflow, 1));
    if (!config.model.moe_echo_dump_dir.empty() && !target.meta)
      experts.on_replica_plan = make_plan_writer(disk, config.model.moe_echo_dump_dir, process.world->rank(), target);
  }
  if (!forward_only && needs_expert_loads(config))
    model.experts->meter = std::make_shared<moe::LoadMeter>(config.model.num_moe_experts, target);
}

void make_optimization(const ProcessContext& process, const RankModel& model, Optimization& optimization) {
  const config::Config& config = process.config;
  const device::Target& target = process.world->target();
  optimization.param_groups = std::make_unique<optim::ParamGroups>(config.optim, model.params);
  optim::OptimizerContext context;
  context.groups = optimization.param_groups.get();
  context.axes = process.groups();
  context.target = target;
  context.find_shard_group = [&](const nn::Param& param) { return model.families.of(param).data_parallel.shard; };
  context.seed = static_cast<uint64_t>(config.run.seed);
  optimization.optimizer = optim::make_optimizer(config.optim, optimization.trained, context);
  optimization.scaler = optim::make_grad_scaler(config.precision);
  const size_t groups = optimization.param_groups->factors().size();
  kernels::StepValues start;
  if (optimization.scaler) optim::set_scaler_state(start, optimization.scaler->start());
  optimization.step_state = optim::StepState(target, groups, start);
  optimization.rates = optim::RateTable(target, groups, config.optim.adam_beta1, config.optim.adam_beta2);
  const config::Config lengths = convert_to_samples(config, microbatch_schedule(config, process.groups().dp.size()));
  optimization.schedule = std::make_unique<optim::LrSchedule>(optim::schedule_args(lengths));
}

}  // namespace

std::unique_ptr<Assembly> assemble(const config::Config& config, const comm::World& world, int64_t vocab_size,
                                   bool forward_only, const StageBuilder& build, files::FileSystem* file_system,
                                   InitialValues values, const std::vector<distributed::FamilyKey>& other_stages) {
  files::PosixFileSystem local_disk;
  auto assembly = std::make_unique<Assembly>();
  ProcessContext& process = assembly->process;
  process.config = config;
  make_graph_device(process, world);
  const device::Target& target = process.world->target();
  process.dtype = scalar_type(config.precision.params_dtype);
  process.vocab_size = vocab_size;
  process.placement = plan::stage_placement(config.parallel);

  RankModel& model = assembly->model;
  model.variable_lengths =
      config.parallel.context_parallel_token_slack > 0 || config.parallel.hybrid_context_parallel;
  model.layers = plan::split_stages(config.parallel, config.model.num_layers, config.model.mtp_num_layers);
  if (!forward_only) model.sharding = config.parallel.sharding();
  assembly->step_buffers.flags =
      at::zeros({kernels::kStepFlags}, at::TensorOptions().dtype(at::kInt).device(target.memory()));
  make_experts(process, assembly->step_buffers.flags, forward_only,
               file_system != nullptr ? *file_system : local_disk, model);
  if (!forward_only && config.precision.rounds_operands())
    model.rounding_meter = std::make_shared<nn::RoundingMeter>(target);
  models::ModelContext context = model_context(process, model);
  context.deferred = model.sharding.gathers_units();
  context.keeps_rounded_weights = !forward_only && config.precision.keep_rounded_weights && !context.deferred;
  if (values == InitialValues::loaded) context.init_std = 0;
  std::vector<size_t> units = build_stages(process, model, context, build);
  check_name_patterns(process, model);
  if (!forward_only) freeze(process, model);
  std::vector<pipeline::Stage*> stages;
  for (const auto& stage : model.stages) stages.push_back(stage.get());
  model.executor = std::make_unique<pipeline::Executor>(stages, process.groups().pp);
  make_families(process, model, assembly->optimization, std::move(units), forward_only, other_stages);
  const bool shares = context.streams && !model.shared.empty();
  if (shares) share_values(model.shared, model.slices);
  if (shares || config.precision.fp8_param_gather) {
    model.families.loaded();
    model.families.finish_gathers();  // later loads write to memory that an unfinished gather would read
  }
  // Partial graphs are checked for training only (config/rules_graphs.cpp).
  if (process.graph_device && config.train.captures_parts() && !forward_only)
    assembly->graphs.partial = std::make_unique<PartialGraphs>(process, model, *process.graph_device);
  if (process.graph_device && config.train.cuda_graph_impl == config::CudaGraphImpl::full_iteration)
    assembly->graphs.step =
        std::make_unique<StepGraphs>(process, model, assembly->step_buffers, *process.graph_device);
  if (!forward_only) make_optimization(process, model, assembly->optimization);
  return assembly;
}

}  // namespace metroplex::step

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
#include "step/clone_dump.h"
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
    for (int64_t depth = 1; depth <= config.model.mtp_num_layers && models::predicts_ahead(batch); ++depth) {
      hidden.name = models::predicted_name(depth);
      border.values.push_back(hidden);
    }
  }
  border.values.insert(border.values.end(), also_crosses.begin(), also_crosses.end());
  return border;
}

pipeline::PipelineInput Assembly::pipeline_input(const std::vector<nn::Microbatch>& batches,
                                                 at::Tensor loss_gradients, bool forward_only, bool eager) {
  pipeline::PipelineInput run{table(static_cast<int>(batches.size()), forward_only), batches,
                              std::move(loss_gradients), border(batches.at(0))};
  if (partial_graphs) partial_graphs->take_part(run, eager);
  return run;
}

static std::vector<optim::NormPart> parts_of(const Assembly& a, bool frozen_too) {
  std::vector<optim::NormPart> parts;
  for (const distributed::ParamFamily& family : a.families.all()) {
    if (family.key.frozen && !frozen_too) continue;
    parts.push_back({family.slices,
                     {a.world->coordinates(), family.model_parallel, family.data_parallel.shard, a.world->target()}});
  }
  return parts;
}

std::vector<optim::NormPart> Assembly::norm_parts() const { return parts_of(*this, true); }
std::vector<optim::NormPart> Assembly::gradient_parts() const { return parts_of(*this, false); }

namespace {

models::ModelContext model_context(const Assembly& a) {
  const config::Config& config = a.config;
  models::ModelContext context(config.model);
  context.vocab_size = a.vocab_size;
  context.positions = a.config.train.seq_length;
  context.label_smoothing = config.train.label_smoothing;
  nn::set_tensor_parallel(context, a.groups().tp, config.parallel.sequence_parallel);
  context.cp = a.groups().cp;
  context.cp_a2a = a.groups().cp_a2a, context.cp_p2p = a.groups().cp_p2p;
  context.cp_comm_types = config::cp_comm_types(config.parallel);
  if (config.parallel.hybrid_context_parallel) context.cp_by_size = hybrid_groups(*a.world);
  if (a.experts) context.experts = *a.experts;
  context.peft = config.peft;
  context.dtype = a.dtype;
  context.target = a.world->target();
  context.fp32_residual_connection = config.precision.fp32_residual_connection;
  context.seed = static_cast<uint64_t>(config.run.seed);
  if (config.model.sharded_initialization) {
    const topology::Coordinates at = a.world->coordinates();
    // Holders of a shared parameter sample different values; share_values() copies the owner's (step/sharing.h).
    context.streams = nn::make_init_streams(nn::rng_seeds(context.seed, nn::RngPlace{at.tp, at.pp, at.ep, at.etp}));
  }
  return context;
}

// Counts the MoE layers of a stage whose expert rows are saved from forward to backward.
int layers_with_kept_rows(const pipeline::StageSaving& saving, const nn::Blocks& blocks) {
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
int64_t layers_at_once(Assembly& a, const std::vector<int>& layers) {
  const plan::MicrobatchSchedule schedule = microbatch_schedule(a.config, a.groups().dp.size());
  int64_t samples = a.config.train.global_batch_size;
  for (const auto& [from, size] : schedule.thresholds()) samples = std::max(samples, size);
  const int64_t count = samples / (a.config.train.micro_batch_size * a.groups().dp.size());
  int64_t now = 0, most = 0;
  const plan::PipelineTable& table = a.table(static_cast<int>(std::max<int64_t>(1, count)), false);
  for (const plan::Action& action : table.ranks[static_cast<size_t>(a.groups().pp.index())]) {
    const int of_chunk = layers[static_cast<size_t>(action.chunk)];
    if (action.kind == plan::ActionKind::forward) now += of_chunk;
    if (action.kind == plan::ActionKind::backward) now -= of_chunk;
    most = std::max(most, now);
  }
  return most;
}

// Sizes the paged stash: pages for a balanced load of all rows saved at one time, times the configured factors. The
// row capacity of the buffers is the upper limit.
void make_stash(Assembly& a, const std::vector<int>& layers) {
  if (!a.experts || !a.experts->stash) return;
  const config::Config& config = a.config;
  const config::Model& model = config.model;
  const int64_t parts = config.parallel.sequence_parallel ? config.parallel.tp() : 1,
                tokens = config.train.micro_batch_size * config.train.seq_length / (parts * config.parallel.cp()),
                at_once = layers_at_once(a, layers);
  kernels::PageShape shape;
  shape.page_rows = model.moe_paged_stash_page_size;
  const int64_t even = at_once * shape.pages_of(config::even_rows(model, tokens, a.experts->etp)),
                most = at_once * shape.pages_of(config::rank_capacity(model, tokens, a.experts->etp, a.experts->ep));
  const auto times = [&](double factor) {
    return static_cast<int64_t>(std::min(std::ceil(factor * static_cast<double>(even)), static_cast<double>(most)));
  };
  shape.device_pages = times(model.moe_paged_stash_buffer_size_factor_cuda);
  shape.host_pages = std::min(times(model.moe_paged_stash_buffer_size_factor_cpu), most - shape.device_pages);
  a.experts->stash->make(shape, even);
  a.step_counts.push_back(a.experts->stash->state());
}

// Builds this rank's chunks and collects their parameters. Returns the number of new parameters per block.
std::vector<size_t> build_stages(Assembly& a, models::ModelContext context, const StageBuilder& build) {
  const config::Memory& memory = a.config.memory;
  const auto store = nn::make_activation_store(memory, a.world->target());
  context.saving = nn::save_policy(memory, store);
  std::vector<size_t> units;
  std::vector<ChunkParams> chunks;
  std::vector<int> kept_layers;
  for (size_t place = 0; place < a.layers.size(); ++place) {
    const plan::StageLayers& slice = a.layers[place];
    if (slice.pp_rank != a.groups().pp.index()) continue;
    chunks.push_back({static_cast<int64_t>(place), {}});
    nn::Blocks blocks = build(context, {slice.first_layer, slice.num_layers, slice.has_embedding, slice.has_loss,
                                        slice.num_mtp_layers > 0});
    auto saving = pipeline::stage_saving(memory, blocks, a.groups().tp, store);
    kept_layers.push_back(layers_with_kept_rows(saving, blocks));
    a.stages.push_back(std::make_unique<pipeline::Stage>(std::move(blocks), std::move(saving)));
    for (const nn::Block& block : a.stages.back()->blocks()) {
      const size_t before = a.params.size();
      for (nn::Param* param : nn::params_of(block)) {
        if (std::find(a.params.begin(), a.params.end(), param) != a.params.end()) continue;
        a.params.push_back(param);
        chunks.back().params.push_back(param);
      }
      units.push_back(a.params.size() - before);
      for (const auto& segment : block.segments) {
        segment->collect_buffers(a.buffers);
        segment->collect_step_counts(a.step_counts);
      }
    }
  }
  for (const nn::Buffer* buffer : a.buffers) a.step_counts.push_back(buffer->pending);
  make_stash(a, kept_layers);
  a.shared = find_shared(*a.world, chunks);
  std::vector<const nn::Blocks*> all;
  for (const auto& stage : a.stages) all.push_back(&stage->blocks());
  nn::count_uses(all);
  return units;
}

void make_families(Assembly& a, std::vector<size_t> units, bool forward_only) {
  distributed::FamilyOptions options;
  options.parallel = &a.config.parallel;
  options.sharding = a.sharding;
  options.forward_only = forward_only;
  options.gradients_as_params = a.config.precision.main_grads_dtype == config::MainGradsDtype::params;
  options.device = a.world->device();
  options.units = std::move(units);
  a.families = distributed::ParamFamilies(*a.world, a.params, options);
  a.slices = a.families.slices();
  if (!forward_only) {
    std::copy_if(a.slices.begin(), a.slices.end(), std::back_inserter(a.trained),
                 [](const distributed::Slice& slice) { return !slice.param->frozen; });
  }
  for (const auto& stage : a.stages) {
    std::vector<std::vector<nn::Param*>> blocks;
    for (const nn::Block& block : stage->blocks()) blocks.push_back(nn::params_of(block));
    a.gathers.push_back(a.families.make_gather(blocks));
    if (a.gathers.back()) stage->listen("parameter gather", *a.gathers.back());
  }
}

void make_optimizer(Assembly& a) {
  a.param_groups = std::make_unique<optim::ParamGroups>(a.config.optim, a.params);
  optim::OptimizerContext context;
  context.groups = a.param_groups.get();
  context.axes = a.groups();
  context.target = a.world->target();
  context.shard_of = [&](const nn::Param& param) { return a.families.of(param).data_parallel.shard; };
  context.seed = static_cast<uint64_t>(a.config.run.seed);
  a.optimizer = optim::make_optimizer(a.config.optim, a.trained, context);
}

}  // namespace

// Sets Assembly::world. All later groups and kernel targets use the recorded world, so that captures record their
// calls.
static void make_graph_device(Assembly& a, const comm::World& world) {
  a.world = &world;
  if (a.config.train.cuda_graph_impl == config::CudaGraphImpl::none || world.target().meta) return;
  a.graph_device = graph::make_graph_device(world.device());
  if (a.graph_device->recorder() == nullptr) return;
  a.recorded_world.emplace(world.recorded(*a.graph_device->recorder()));
  a.world = &*a.recorded_world;
}

static void make_graphs(Assembly& a, bool forward_only) {
  // Partial graphs are checked for training only (config/rules_graphs.cpp).
  if (a.graph_device && a.config.train.captures_parts() && !forward_only)
    a.partial_graphs = std::make_unique<PartialGraphs>(a, *a.graph_device);
  if (a.graph_device && a.config.train.cuda_graph_impl == config::CudaGraphImpl::full_iteration)
    a.graphs = std::make_unique<StepGraphs>(a, *a.graph_device);
}

std::unique_ptr<Assembly> assemble(const config::Config& config, const comm::World& asked, int64_t vocab_size,
                                   bool forward_only, const StageBuilder& build, files::FileSystem* its_disk,
                                   FirstValues values) {
  files::PosixFileSystem machines;
  files::FileSystem& disk = its_disk != nullptr ? *its_disk : machines;
  auto a = std::make_unique<Assembly>();
  a->config = config;
  make_graph_device(*a, asked);
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
      a->experts->on_clone_plan = clone_dump(disk, config.model.moe_echo_dump_dir, world.rank(), world.target());
  }
  if (!forward_only && counts_experts(config))
    a->experts->meter = std::make_shared<moe::LoadMeter>(config.model.num_moe_experts, world.target());
  models::ModelContext context = model_context(*a);
  context.deferred = a->sharding.gathers_units();
  if (values == FirstValues::loaded) context.init_std = 0;
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
    a->families.settle();  // later loads write to memory that an unfinished gather would read
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
  const config::Config lengths = in_samples(config, microbatch_schedule(config, a->groups().dp.size()));
  a->schedule = std::make_unique<optim::LrSchedule>(optim::schedule_args(lengths));
  return a;
}

}  // namespace metroplex::step

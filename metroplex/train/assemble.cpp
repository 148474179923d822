#include "train/assemble.h"

#include <algorithm>

#include "base/error.h"
#include "comm/collectives.h"
#include "models/registry.h"
#include "nn/param_init.h"
#include "plan/buckets.h"
#include "plan/schedules/registry.h"
#include "plan/stage_split.h"
#include "plan/verify.h"
#include "train/run_length.h"

namespace metroplex::train {

at::ScalarType scalar_type(const std::string& params_dtype) {
  if (params_dtype == "fp64") return at::kDouble;
  if (params_dtype == "bf16") return at::kBFloat16;
  if (params_dtype == "fp16") return at::kHalf;
  MPX_CHECK(params_dtype == "fp32", "config", "precision.params_dtype '", params_dtype,
            "' is unknown; choose fp32, fp64, bf16 or fp16");
  return at::kFloat;
}

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
  return {{s / parts, batch.tokens.size(0), config.model.hidden_size}, wide ? at::kFloat : dtype, variable_lengths};
}

namespace {

models::ModelContext model_context(const Assembly& a) {
  const config::Config& config = a.config;
  models::ModelContext context;
  context.model = config.model;
  context.vocab_size = a.vocab_size;
  context.sequence_parallel = config.parallel.sequence_parallel;
  context.label_smoothing = config.train.label_smoothing;
  context.tp = a.groups().tp;
  context.cp = a.groups().cp;
  context.dtype = a.dtype;
  context.target = a.world->target();
  context.fp32_residual_connection = config.precision.fp32_residual_connection;
  context.seed = static_cast<uint64_t>(config.run.seed);
  if (config.model.sharded_initialization) {
    const topology::Coordinates at = a.world->coordinates();
    context.init_streams =
        nn::make_init_streams(nn::rng_seeds(context.seed, nn::RngPlace{at.tp, at.pp, at.ep, at.etp}));
  }
  return context;
}

// Builds this rank's chunks and lists their parameters. Returns how many new ones each segment brought.
std::vector<size_t> build_stages(Assembly& a, models::ModelContext context) {
  const config::Memory& memory = a.config.memory;
  const auto store = nn::make_activation_store(memory);
  context.saving = nn::save_policy(memory, store);
  std::vector<size_t> units;
  std::vector<ChunkParams> chunks;
  const std::vector<plan::StageLayers> slices = plan::split_stages(a.config.parallel, a.config.model.num_layers);
  for (size_t place = 0; place < slices.size(); ++place) {
    const plan::StageLayers& slice = slices[place];
    if (slice.pp_rank != a.groups().pp.index()) continue;
    chunks.push_back({static_cast<int64_t>(place), {}});
    pipeline::Segments segments =
        models::build_stage(context, {slice.first_layer, slice.num_layers, slice.has_embedding, slice.has_loss});
    auto kept = pipeline::stage_memory(memory, segments, a.groups().tp, store);
    a.stages.push_back(std::make_unique<pipeline::Stage>(std::move(segments), std::move(kept)));
    for (const auto& segment : a.stages.back()->segments()) {
      const size_t before = a.params.size();
      std::vector<nn::Param*> of_segment;
      segment->collect_params(of_segment);
      for (nn::Param* param : of_segment) {
        if (std::find(a.params.begin(), a.params.end(), param) != a.params.end()) continue;
        a.params.push_back(param);
        chunks.back().params.push_back(param);
      }
      units.push_back(a.params.size() - before);
    }
  }
  a.shared = find_shared(*a.world, chunks);
  return units;
}

std::shared_ptr<const optim::FlatLayout> make_layout(const Assembly& a, int zero_stage,
                                                     const std::vector<size_t>& units) {
  optim::FlatLayoutOptions options;
  options.bucket_size = plan::gradient_bucket_size(a.config.parallel, a.data_parallel.size());
  options.sharded = zero_stage > 0;
  options.parts = a.data_parallel.shard.size();
  options.index = a.data_parallel.shard.index();
  if (zero_stage == 3) options.units = units;
  return std::make_shared<const optim::FlatLayout>(a.params, options);
}

// What every segment of a stage reads, as buckets.
std::vector<std::vector<size_t>> buckets_of(const pipeline::Stage& stage, const optim::FlatLayout& layout) {
  std::vector<std::vector<size_t>> buckets;
  for (const auto& segment : stage.segments()) {
    std::vector<nn::Param*> params;
    segment->collect_params(params);
    std::vector<size_t> mine;
    for (nn::Param* param : params) {
      const auto at = std::find(layout.params().begin(), layout.params().end(), param) - layout.params().begin();
      const size_t bucket = layout.bucket_of(static_cast<size_t>(at));
      if (std::find(mine.begin(), mine.end(), bucket) == mine.end()) mine.push_back(bucket);
    }
    buckets.push_back(std::move(mine));
  }
  return buckets;
}

void make_buffers(Assembly& a, int zero_stage, const std::vector<size_t>& units) {
  const config::Parallel& p = a.config.parallel;
  const auto layout = make_layout(a, zero_stage, units);
  optim::ParamBufferOptions params;
  params.zero_stage = zero_stage;
  params.overlap = p.overlap_param_gather;
  params.align = p.align_param_gather;
  params.tensor = at::TensorOptions().dtype(a.dtype).device(a.world->device());
  a.param_buffer = std::make_unique<optim::ParamBuffer>(layout, a.data_parallel.shard, params);
  for (const auto& stage : a.stages) {
    if (zero_stage == 0) break;
    a.gathers.push_back(std::make_unique<optim::SegmentGather>(*a.param_buffer, buckets_of(*stage, *layout)));
    stage->set_moments(a.gathers.back().get());
  }
  optim::GradBufferOptions grads;
  const bool as_params = a.config.precision.main_grads_dtype == "params";
  grads.dtype = a.dtype == at::kDouble || as_params ? a.dtype : at::kFloat;
  grads.device = a.world->device();
  grads.overlap = p.overlap_grad_reduce;
  grads.average = !a.config.train.calculate_per_token_loss;
  grads.transient_buckets = zero_stage >= 2;
  a.gradients = std::make_unique<optim::GradBuffer>(layout, a.data_parallel, grads);
  a.slices = optim::own_slices(*a.param_buffer, *a.gradients);
}

}  // namespace

std::unique_ptr<Assembly> assemble(const config::Config& config, const comm::World& world, int64_t vocab_size,
                                   bool forward_only) {
  auto a = std::make_unique<Assembly>();
  a->config = config;
  a->world = &world;
  a->dtype = scalar_type(config.precision.params_dtype);
  a->vocab_size = vocab_size;
  const comm::Groups& groups = world.groups();
  const int zero_stage = forward_only ? 0 : config.parallel.zero_stage();
  a->data_parallel = zero_stage == 0 ? optim::DataParallel{comm::Group(), groups.dp_cp}
                                     : optim::DataParallel{groups.intra_dp_cp, groups.inter_dp_cp};

  models::ModelContext context = model_context(*a);
  context.deferred_initialization = zero_stage == 3;
  const std::vector<size_t> units = build_stages(*a, context);
  std::vector<pipeline::Stage*> stages;
  for (const auto& stage : a->stages) stages.push_back(stage.get());
  a->executor = std::make_unique<pipeline::Executor>(stages, groups.pp);
  if (forward_only) {
    for (nn::Param* param : a->params) a->slices.push_back({param, 0, param->numel(), param->data.view(-1), {}});
  } else {
    make_buffers(*a, zero_stage, units);
  }
  if (context.init_streams && !a->shared.empty()) {
    share_values(a->shared, a->slices);
    if (a->param_buffer) {
      a->param_buffer->updated();
      a->param_buffer->settle();  // whoever loads other values next writes where a gather would read
    }
  }
  if (forward_only) return a;

  a->param_groups = std::make_unique<optim::ParamGroups>(config.optim, a->params);
  optim::OptimizerContext optimizer;
  optimizer.groups = a->param_groups.get();
  optimizer.axes = groups;
  optimizer.shard = a->data_parallel.shard;
  optimizer.tensor = at::TensorOptions().dtype(a->dtype).device(world.device());
  optimizer.target = world.target();
  optimizer.seed = static_cast<uint64_t>(config.run.seed);
  a->optimizer = optim::make_optimizer(config.optim, a->slices, optimizer);
  a->scaler = optim::make_grad_scaler(config.precision);
  // The schedules count samples; iterations are turned into samples by the full batch size.
  config::Config lengths = config;
  lengths.train.global_batch_size = run_length(config, microbatch_schedule(config, groups.dp.size())).full_batch_size;
  a->schedule = std::make_unique<optim::LrSchedule>(optim::schedule_args(lengths));
  return a;
}

}  // namespace metroplex::train

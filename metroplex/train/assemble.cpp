#include "train/assemble.h"

#include <algorithm>

#include "base/error.h"
#include "comm/collectives.h"
#include "models/registry.h"
#include "nn/param_init.h"
#include "plan/schedules/registry.h"
#include "plan/stage_split.h"
#include "plan/verify.h"
#include "train/run_length.h"

namespace metroplex::train {

at::ScalarType scalar_type(const std::string& params_dtype) {
  if (params_dtype == "fp64") return at::kDouble;
  MPX_CHECK(params_dtype == "fp32", "config", "precision.params_dtype '", params_dtype,
            "' is unknown; choose fp32 or fp64");
  return at::kFloat;
}

const plan::PipelineTable& Assembly::table(int num_microbatches, bool forward_only) {
  const auto key = std::make_pair(num_microbatches, forward_only);
  const auto found = tables_.find(key);
  if (found != tables_.end()) return found->second;
  const config::Parallel& p = config.parallel;
  plan::ScheduleRequest request;
  request.num_stages = static_cast<int>(p.pp());
  request.num_chunks = static_cast<int>(stages.size());
  request.num_microbatches = num_microbatches;
  request.microbatch_group_size = static_cast<int>(p.microbatch_group_size_per_vp_stage);
  request.forward_only = forward_only;
  request.overlap_p2p = p.overlap_p2p_comm;
  plan::PipelineTable table = plan::build_schedule(p.pipeline_schedule, request);
  plan::verify(table);
  return tables_.emplace(key, std::move(table)).first->second;
}

pipeline::BorderShape Assembly::border(const nn::Microbatch& batch) const {
  const int64_t parts = config.parallel.sequence_parallel ? config.parallel.tp() : 1;
  const int64_t s = batch.tokens.size(1);
  MPX_CHECK(s % parts == 0, "config", "a sequence of ", s, " tokens is not a multiple of tp = ", parts,
            ", which parallel.sequence_parallel needs; pad it or turn that off");
  return {{s / parts, batch.tokens.size(0), config.model.hidden_size}, dtype, config.parallel.variable_seq_lengths};
}

namespace {

// With sharded initialisation the last stage's copy of the word embedding starts as zeros: the sum is the first
// stage's.
void share_tied_embedding(Assembly& a) {
  for (nn::Param* param : a.params) {
    if (param->tied) comm::all_reduce(param->data, a.groups().embedding);
  }
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
  models::ModelContext context;
  context.model = config.model;
  context.vocab_size = vocab_size;
  context.sequence_parallel = config.parallel.sequence_parallel;
  context.label_smoothing = config.train.label_smoothing;
  context.tp = groups.tp;
  context.dtype = a->dtype;
  context.seed = static_cast<uint64_t>(config.run.seed);
  if (config.model.sharded_initialization) {
    nn::RngPlace place;
    place.tp_rank = groups.tp.index();
    place.pp_rank = groups.pp.index();
    context.init_streams = nn::make_init_streams(nn::rng_seeds(context.seed, place));
  }
  std::vector<pipeline::Stage*> stages;
  for (const plan::StageLayers& slice : plan::split_stages(config.parallel, config.model.num_layers)) {
    if (slice.pp_rank != groups.pp.index()) continue;
    a->stages.push_back(std::make_unique<pipeline::Stage>(
        models::build_stage(context, {slice.first_layer, slice.num_layers, slice.has_embedding, slice.has_loss})));
    stages.push_back(a->stages.back().get());
    for (nn::Param* param : stages.back()->params()) {
      if (std::find(a->params.begin(), a->params.end(), param) == a->params.end()) a->params.push_back(param);
    }
  }
  if (context.init_streams && config.model.tied()) share_tied_embedding(*a);
  a->executor = std::make_unique<pipeline::Executor>(stages, groups.pp);
  if (forward_only) return a;

  optim::GradBufferOptions options;
  options.dtype = a->dtype == at::kDouble ? at::kDouble : at::kFloat;
  options.bucket_size = config.parallel.ddp_bucket_size;
  options.overlap = config.parallel.overlap_grad_reduce;
  options.average = !config.train.calculate_per_token_loss;
  a->gradients = std::make_unique<optim::GradBuffer>(a->params, groups.dp_cp, options);
  a->optimizer = optim::make_optimizer(config.optim, a->params);
  // The schedules count samples; iterations are turned into samples by the full batch size.
  config::Config lengths = config;
  lengths.train.global_batch_size = run_length(config, microbatch_schedule(config, groups.dp.size())).full_batch_size;
  a->schedule = std::make_unique<optim::LrSchedule>(optim::schedule_args(lengths));
  return a;
}

}  // namespace metroplex::train

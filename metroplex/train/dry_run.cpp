#include "train/dry_run.h"

#include "config/validate.h"
#include "plan/schedules/registry.h"
#include "plan/timeline.h"

namespace metroplex::train {
namespace {

// Pieces of work in a table that are replayed in about a tenth of a second.
constexpr int64_t kLargestReplay = 100'000;

// The model on one rank without padding for others: its parameters are those of the whole.
int64_t whole_model(const FitRequest& request, const Predictor& predict) {
  plan::MemoryRequest alone{request.config, 1, 0, request.vocab_size, 1};
  config::Config& c = alone.config;
  c.model.make_vocab_size_divisible_by *= c.parallel.tp();
  const config::Parallel standard;
  c.parallel = standard;
  c.parallel.virtual_pipeline_model_parallel_size = 1;
  c.parallel.pipeline_schedule = config::Schedule::none;
  c.parallel.ddp_bucket_size = request.config.parallel.ddp_bucket_size;
  c.memory = {};
  return predict(alone).num_params;
}

// The first rank of every pipeline rank.
std::vector<const RankFigures*> stages_of(const Fit& fit) {
  std::vector<const RankFigures*> stages;
  for (const RankFigures& rank : fit.ranks) {
    if (!rank.last) stages.push_back(&rank);
  }
  return stages;
}

plan::TimelineCosts costs_of(const DryRun& run, const std::vector<const RankFigures*>& stages, int chunks) {
  plan::TimelineCosts costs;
  costs.forward = 1;
  costs.backward = 3 * run.step_flops / run.model_flops - 1;
  double all = 0;
  for (const RankFigures* stage : stages) all += stage->prediction.flops;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (const RankFigures* stage : stages)
      costs.stage_scale.push_back(stage->prediction.flops * static_cast<double>(stages.size()) / all);
  }
  return costs;
}

PipelineOutlook pipeline_of(const DryRun& run) {
  const config::Config& c = run.request.config;
  PipelineOutlook out;
  out.microbatches = most_microbatches(c, run.request.world_size);
  const auto chunks = static_cast<int>(c.parallel.vpp());
  const auto request = plan::schedule_request(c.parallel, chunks, static_cast<int>(out.microbatches));
  plan::PipelineTable table;
  table.num_stages = static_cast<int>(c.parallel.pp());
  table.num_chunks = chunks;
  table.num_microbatches = static_cast<int>(out.microbatches);
  out.formula_bubble_share = plan::formula_bubble_share(table);
  if (c.parallel.pp() * chunks * out.microbatches > kLargestReplay) return out;
  const plan::Timeline timeline = plan::replay(plan::build_schedule(c.parallel.pipeline_schedule, request),
                                               costs_of(run, stages_of(run.fit), chunks));
  out.bubble_share = timeline.total_bubble_share;
  for (const int live : timeline.peak_live_activations) out.live_microbatches.push_back(double(live) / chunks);
  return out;
}

}  // namespace

std::optional<double> DryRun::epochs(const data::SourceTokens& source) const {
  if (!source.problem.empty() || source.tokens == 0) return std::nullopt;
  return static_cast<double>(all_tokens()) * source.share / static_cast<double>(source.tokens);
}

DryRun dry_run(const FitRequest& request, files::FileSystem& disk, const Predictor& predict) {
  const config::Config& c = request.config;
  const int64_t dp = config::data_parallel_size(c.parallel, request.world_size);
  DryRun run;
  run.request = request;
  run.request.places.only.reset();
  run.fit = fit(run.request, predict);
  run.num_params = whole_model(request, predict);
  const std::vector<const RankFigures*> stages = stages_of(run.fit);
  const double ranks_of_a_stage = static_cast<double>(request.world_size) / static_cast<double>(stages.size());
  for (const RankFigures* stage : stages) {
    run.step_flops += ranks_of_a_stage * stage->prediction.flops;
    run.model_flops += ranks_of_a_stage * stage->prediction.model_flops;
  }
  run.step_tokens = most_microbatches(c, request.world_size) * dp * c.train.micro_batch_size * c.train.seq_length;
  run.length = run_length(c, microbatch_schedule(c, dp));
  run.pipeline = pipeline_of(run);
  run.sources = data::training_tokens(c.data, disk);
  if (!run.fits()) run.ways = ways_out(run.request, run.fit, predict);
  return run;
}

}  // namespace metroplex::train

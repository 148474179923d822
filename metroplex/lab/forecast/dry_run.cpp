#include "forecast/dry_run.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "config/derived.h"
#include "config/validate.h"
#include "plan/schedule_search.h"
#include "plan/schedules/registry.h"
#include "replay/timeline.h"
#include "plan/model_flops.h"

namespace metroplex::forecast {
namespace {

// Maximum number of actions that are replayed, in about a tenth of a second.
constexpr int64_t kMaxReplay = 100'000;
// Maximum number of microbatches of all ranks for which a schedule is searched, in about three seconds.
constexpr int64_t kMaxSearch = 1024;

// Returns the first rank of every pipeline rank.
std::vector<const RankFigures*> find_stages(const Fit& fit) {
  std::vector<const RankFigures*> stages;
  for (const RankFigures& rank : fit.ranks) {
    if (!rank.last && !rank.between) stages.push_back(&rank);
  }
  return stages;
}

// The time of a rank is proportional to its FLOPs. The ratio of backward to forward is the average over all ranks.
// Weight gradients need as many FLOPs as the forward; frozen weights and recomputation change the rest.
plan::ActionTimes action_times(const std::vector<const RankFigures*>& stages) {
  double all = 0, forward = 0;
  for (const RankFigures* stage : stages) {
    all += stage->prediction.flops;
    forward += stage->prediction.forward_flops;
  }
  plan::ActionTimes times;
  const double backward = forward > 0 ? (all - forward) / forward * times.forward : 2;
  times.weight = std::clamp(backward - times.forward, 0.0, times.forward);
  times.backward = backward - times.weight;
  for (const RankFigures* stage : stages)
    times.scale.push_back(stage->prediction.flops * static_cast<double>(stages.size()) / all);
  return times;
}

PipelineOutlook predict_pipeline(const config::Config& config, int world_size, const plan::ActionTimes& times) {
  PipelineOutlook out;
  out.microbatches = max_microbatches(config, world_size);
  const auto chunks = static_cast<int>(config.parallel.vpp());
  const auto request = plan::schedule_request(config.parallel, chunks, static_cast<int>(out.microbatches));
  out.formula_bubble_share = formula_bubble_share(config, out.microbatches);
  if (config.parallel.pp() * chunks * out.microbatches > kMaxReplay) return out;
  const plan::PipelineTable table = plan::build_schedule(config.parallel.pipeline_schedule, request);
  replay::TimelineCosts costs;
  costs.forward = times.forward, costs.backward = times.backward + times.weight, costs.weight = times.weight;
  costs.stage_scale = plan::chunk_times(times, table.placement()).scale;
  const replay::Timeline timeline = replay::replay(table, costs);
  out.bubble_share = timeline.total_bubble_share;
  for (const int live : timeline.peak_live_activations) out.live_microbatches.push_back(double(live) / chunks);
  return out;
}

std::string format_times(const plan::ActionTimes& times) {
  std::string text = base::concat(times.forward, ",", times.backward, ",", times.weight, ",0");
  for (const double factor : times.scale) text += base::concat(",", factor);
  return text;
}

}  // namespace

double formula_bubble_share(const config::Config& config, int64_t microbatches) {
  return replay::formula_bubble_share(static_cast<int>(config.parallel.pp()), static_cast<int>(config.parallel.vpp()),
                                      static_cast<int>(microbatches), config::splits_backward(config.parallel));
}

RankPrediction whole_model(const FitRequest& request, const Predictor& predict) {
  RankRequest alone{request.config, 1, 0, request.vocab_size, 1};
  alone.eager = true;  // parameters and FLOPs are the same in every step
  config::Config& config = alone.config;
  config.model.make_vocab_size_divisible_by *= config.parallel.tp();  // gives the same padded size
  const int64_t bucket_size = config.parallel.ddp_bucket_size;
  config.parallel = {};
  config.parallel.virtual_pipeline_model_parallel_size = 1;
  config.parallel.pipeline_schedule = config::Schedule::none;
  config.parallel.ddp_bucket_size = bucket_size;
  config.memory = {};
  config.train.micro_batch_size = 1;
  config.precision.fp8_products = config::Fp8Products::widened;  // for any number of tokens
  return predict(alone);
}

std::optional<double> DryRun::epochs(const data::SourceTokens& source) const {
  if (!source.problem.empty() || source.tokens == 0) return std::nullopt;
  return source.epochs(static_cast<double>(length.samples));
}

static void count_active(DryRun& run) {
  const config::Config& config = run.request.config;
  const plan::ModelShape shape = plan::model_shape(
      config, config::padded_vocab_size(run.request.vocab_size, config.model.make_vocab_size_divisible_by,
                                        config.parallel.tp()));
  const auto tokens = static_cast<double>(config.train.seq_length);
  run.active_params = run.num_params - plan::idle_parameters(shape);
  run.token_flops_active = plan::step_flops(shape, {.batch_size = 1}) / tokens;
  run.token_flops_all = plan::step_flops(plan::with_all_experts(shape), {.batch_size = 1}) / tokens;
}

DryRun dry_run(const FitRequest& request, files::FileSystem& disk, const Predictor& predict) {
  const config::Config& config = request.config;
  const int64_t dp = config::data_parallel_size(config.parallel, request.world_size);
  DryRun run;
  run.request = request;
  run.request.domains.only.reset();
  run.fit = fit(run.request, predict);
  run.num_params = whole_model(request, predict).num_params;
  const std::vector<const RankFigures*> stages = find_stages(run.fit);
  const double ranks_of_a_stage = static_cast<double>(request.world_size) / static_cast<double>(stages.size());
  for (const RankFigures* stage : stages) {
    run.step_flops += ranks_of_a_stage * stage->prediction.flops;
    run.model_flops += ranks_of_a_stage * stage->prediction.model_flops;
    const std::vector<ContextExchange>& exchanges = stage->prediction.exchanges;
    run.exchanges.insert(run.exchanges.end(), exchanges.begin(), exchanges.end());
  }
  std::sort(run.exchanges.begin(), run.exchanges.end(),
            [](const auto& a, const auto& b) { return a.layer < b.layer; });
  run.step_tokens =
      max_microbatches(config, request.world_size) * dp * config.train.micro_batch_size * config.train.seq_length;
  if (config.model.has_experts()) count_active(run);
  run.length = step::run_length(config, step::microbatch_schedule(config, dp));
  run.pipeline = predict_pipeline(config, request.world_size, action_times(stages));
  run.sources =
      data::training_tokens(config.data, disk, {config.train.seq_length, static_cast<uint64_t>(config.run.seed)});
  if (!run.fits()) run.memory_options = memory_options(run.request, run.fit, predict);
  return run;
}

std::vector<ScheduleOutlook> compare_schedules(const DryRun& run, const Predictor& predict) {
  const config::Parallel& own = run.request.config.parallel;
  std::vector<ScheduleOutlook> rows;
  if (own.pp() == 1) return rows;
  for (const auto& [schedule, word] : config::kWords<config::Schedule>) {
    const bool searched = schedule == config::Schedule::searched;
    if (schedule == config::Schedule::automatic || schedule == config::Schedule::none) continue;
    if (searched && own.pp() * run.pipeline.microbatches > kMaxSearch) continue;
    for (const int64_t chunks : std::set<int64_t>{1, 2, own.vpp()}) {
      ScheduleOutlook row;
      row.settings = {base::concat("parallel.pipeline_schedule=", word)};
      if (chunks != own.vpp())
        row.settings.push_back(base::concat("parallel.virtual_pipeline_model_parallel_size=", chunks));
      std::optional<FitRequest> with = with_settings(run.request, row.settings);
      if (!with) continue;
      Fit ranks = fit(*with, predict);
      const plan::ActionTimes times = action_times(find_stages(ranks));
      if (searched) {
        row.settings.push_back("parallel.pipeline_times=" + format_times(times));
        with = with_settings(run.request, row.settings).value();
        ranks = fit(*with, predict);
      }
      row.pipeline = predict_pipeline(with->config, run.request.world_size, times);
      row.need = ranks.need;
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace metroplex::forecast

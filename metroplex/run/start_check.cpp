#include "run/start_check.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/error.h"
#include "checkpoint/exchange.h"
#include "checkpoint/folder_lock.h"
#include "checkpoint/load.h"
#include "comm/collectives.h"
#include "config/name_patterns.h"
#include "config/validate.h"
#include "data/build.h"
#include "foreign/model_directory.h"
#include "files/expert_trace.h"
#include "run/metrics.h"
#include "run/run_data.h"
#include "run/run_folders.h"
#include "run/same_data.h"
#include "run/state.h"
#include "run/step_time_report.h"
#include "run/step_trace.h"

namespace metroplex::run {
namespace {

// Checks the training data. Returns the sample order; empty if this machine cannot read the data.
data::TrainOrder check_training_data(const config::Config& config, const TokenizerFacts& tokenizer,
                                     int64_t world_size, files::FileSystem& disk) {
  const std::vector<data::SourceTokens> sources = data::training_tokens(config.data, disk);
  for (const data::SourceTokens& source : sources) {
    const std::string option = data::way_from_text(disk, source.prefix, config.data);
    MPX_CHECK(option.empty(), "data", option);
  }
  const bool readable = std::all_of(sources.begin(), sources.end(),
                                    [](const data::SourceTokens& source) { return source.problem.empty(); });
  if (!readable) return {};
  const int64_t dp = config::data_parallel_size(config.parallel, world_size);
  const step::RunLength length = step::run_length(config, step::microbatch_schedule(config, dp));
  const data::BuildOptions options = build_options(config, length, tokenizer, false);
  data::check_splits(config.data, options, disk);
  return data::train_order(config.data, options, disk);
}

void check_same_data(const TrainDataInfo& here, const files::Manifest& manifest, const std::string& path) {
  if (here.config.checkpoint.finetune || manifest.consumed_samples == 0) return;
  const std::string other = data_differences(here, saved_data(manifest).run());
  if (!other.empty()) check_data_override(here.config.checkpoint, other, path, manifest.consumed_samples);
}

// A directory with config.json alone needs no check here; the dry run reports it.
void check_directory(const config::Config& config, files::FileSystem& disk) {
  const std::string& from = config.model.from;
  if (from.empty() || !foreign::has_weights(disk, from)) return;
  foreign::open_run_weights(disk, config, [&](const std::string& name) { return config::loads(config, name); });
}

void check_checkpoint(const config::Config& config, const TokenizerFacts& tokenizer, int64_t world_size,
                      const data::TrainOrder& order, files::FileSystem& disk) {
  const config::Checkpoint& checkpoint = config.checkpoint;
  if (checkpoint.load.empty()) return check_directory(config, disk);
  checkpoint::Alone alone;
  const checkpoint::Found found = checkpoint::open_path(disk, checkpoint.load, checkpoint.ckpt_step, alone);
  if (!found.reader) {
    check_first_start(config, found.others, disk);
    return check_directory(config, disk);
  }
  const files::Manifest& manifest = found.reader->manifest();
  check_loadable(config, tokenizer.files.get(), manifest, found.reader->directory(), true);
  check_same_data({config, order}, manifest, found.reader->directory());
  check_schedule(config, config::data_parallel_size(config.parallel, world_size), manifest);
}

}  // namespace

void check_start(const config::Config& config, const TokenizerFacts& tokenizer, int64_t world_size,
                 files::FileSystem& disk) {
  check_machine(config.train);
  check_save_folder(config, disk);
  if (!config.checkpoint.save.empty()) {
    check_writable(config.checkpoint.save, disk);
    checkpoint::check_unlocked(disk, config.checkpoint.save);
  }
  check_metrics_file(disk, config.train.metrics_file);
  check_trace_file(disk, config.train.trace_file);
  if (!config.train.expert_trace_file.empty()) files::check_place_of_trace(disk, config.train.expert_trace_file);
  check_checkpoint(config, tokenizer, world_size, check_training_data(config, tokenizer, world_size, disk), disk);
}

StartFit check_fit_together(const forecast::Fit& mine, const comm::World& world,
                            const std::function<std::string()>& refusal,
                            const std::function<void(const std::string&)>& say) {
  at::Tensor most = at::empty({2}, at::kLong);
  most[0] = mine.fits() ? -world.size() : -world.rank();
  most[1] = mine.need;
  comm::all_reduce(most, world.groups().world, comm::ReduceOp::max);
  StartFit result{most[1].item<int64_t>(), static_cast<int>(-most[0].item<int64_t>())};
  if (result.misfit_rank == world.size()) return {result.need, -1};
  if (result.misfit_rank == world.rank()) say(refusal());
  comm::barrier(world.groups().world);
  return result;
}

}  // namespace metroplex::run

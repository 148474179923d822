#include "train/dry_start.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/exchange.h"
#include "checkpoint/folder_lock.h"
#include "checkpoint/load.h"
#include "config/validate.h"
#include "data/build.h"
#include "data/text_given.h"
#include "data/token_count.h"
#include "train/run_data.h"
#include "train/run_folders.h"
#include "train/same_data.h"
#include "train/state.h"

namespace metroplex::train {
namespace {

// Of the training samples; nothing where no data is here to look at.
data::TrainOrder checked_data(const config::Config& config, const TokenizerFacts& tokenizer, int64_t world_size,
                              files::FileSystem& disk) {
  const std::vector<data::SourceTokens> sources = data::training_tokens(config.data, disk);
  for (const data::SourceTokens& source : sources) {
    const std::string option = data::way_from_text(disk, source.prefix, config.data);
    MPX_CHECK(option.empty(), "data", option);
  }
  const bool readable = std::all_of(sources.begin(), sources.end(),
                                    [](const data::SourceTokens& source) { return source.problem.empty(); });
  if (!readable) return {};
  const int64_t dp = config::data_parallel_size(config.parallel, world_size);
  const RunLength length = run_length(config, microbatch_schedule(config, dp));
  const data::BuildOptions options = build_options(config, length, tokenizer, false);
  data::check_splits(config.data, options, disk);
  return data::train_order(config.data, options, disk);
}

void check_same_data(const DataOfRun& here, const files::Manifest& manifest, const std::string& path) {
  if (here.config.checkpoint.finetune || manifest.consumed_samples == 0) return;
  const std::string other = data_differences(here, saved_data(manifest).run());
  if (!other.empty()) check_consent(here.config.checkpoint, other, path, manifest.consumed_samples);
}

void check_checkpoint(const config::Config& config, const TokenizerFacts& tokenizer, const data::TrainOrder& order,
                      files::FileSystem& disk) {
  const config::Checkpoint& c = config.checkpoint;
  if (c.load.empty()) return;
  checkpoint::Alone alone;
  const checkpoint::Found found = checkpoint::open_path(disk, c.load, c.ckpt_step, alone);
  if (!found.reader) return check_fresh_start(config, found.others);
  const files::Manifest& manifest = found.reader->manifest();
  check_loadable(config, tokenizer.files.get(), manifest, found.reader->directory(), true);
  check_same_data({config, order}, manifest, found.reader->directory());
}

}  // namespace

void check_start(const config::Config& config, const TokenizerFacts& tokenizer, int64_t world_size,
                 files::FileSystem& disk) {
  check_save_folder(config);
  if (!config.checkpoint.save.empty()) {
    check_writable(config.checkpoint.save);
    checkpoint::check_unlocked(disk, config.checkpoint.save);
  }
  check_checkpoint(config, tokenizer, checked_data(config, tokenizer, world_size, disk), disk);
}

}  // namespace metroplex::train

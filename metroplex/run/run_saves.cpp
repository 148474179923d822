#include "run/run_saves.h"

#include <string>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "checkpoint/load.h"
#include "hf/directory.h"
#include "run/run_data.h"
#include "run/long_work.h"

namespace metroplex::run {
namespace {

// Describes the newest checkpoint that a run can resume from.
std::string on_disk(files::FileSystem& disk, const std::string& folder) {
  try {
    const auto latest = checkpoint::read_latest(disk, folder).name;
    const std::vector<checkpoint::CheckpointName> all = checkpoint::list_checkpoints(disk, folder);
    if (!latest && all.empty()) return folder + " contains no checkpoint";
    return folder + " contains " + checkpoint::to_string(latest ? *latest : all.back()) + " as the newest one";
  } catch (const base::Error& error) { return error.what(); }
}

}  // namespace

void RunSaves::report(int64_t iteration, const SaveOutcome& outcome) {
  const std::string name = "iteration " + std::to_string(iteration);
  const std::string& folder = a_.config.checkpoint.save;
  const bool is_reporter = a_.world->rank() == 0;
  base::Log& log = *environment_.log;
  summary_.last_save_failed = !outcome.saved;
  if (outcome.saved) {
    summary_.last_checkpoint = position_.checkpoint = outcome.path;
    if (!is_reporter) return;
    log.info(" saved checkpoint " + outcome.path);
    if (!outcome.note.empty()) log.info(" " + outcome.note);
    if (!outcome.problem.empty()) log.warn(outcome.problem);
    return;
  }
  if (iteration_ == iteration) iteration_ = -1;
  if (!is_reporter) return;
  log.warn("could not save " + name + ": " + outcome.problem + "; older checkpoints in checkpoint.save = " + folder +
           " are untouched");
  summary_.on_disk = name + " could not be saved: " + outcome.problem + "; " + on_disk(*environment_.disk, folder);
}

void RunSaves::save(bool last) {
  if (!background_) {
    iteration_ = position_.iteration;
    report(iteration_, save_state(a_, position_, *environment_.disk));
    return;
  }
  poll();
  if (last) {
    finish();
  } else if (!all_ranks_true(!background_->in_flight(), *a_.world)) {
    if (a_.world->rank() == 0)
      environment_.log->warn(
          base::concat("iteration ", position_.iteration, " is not saved: iteration ", iteration_,
                       " is still being written; the disk is slower than checkpoint.save_interval"));
    return;
  }
  iteration_ = position_.iteration;
  background_->begin(position_);
}

void RunSaves::poll() {
  if (!background_) return;
  if (const auto outcome = background_->take_finished()) report(iteration_, *outcome);
}

void RunSaves::export_last() {
  const std::string& directory = a_.config.checkpoint.export_hf;
  if (directory.empty() || a_.world->rank() != 0) return;
  summary_.export_failed = true;
  if (!has_current() || summary_.last_save_failed) {
    environment_.log->warn("checkpoint.export_hf = " + directory + " is not written: the last checkpoint is missing");
    return;
  }
  if (environment_.disk->exists(directory)) {  // check_export_target() accepted it because no step was left
    summary_.export_failed = false;
    environment_.log->info(" checkpoint.export_hf = " + directory +
                           " exists and is kept, because no steps were left");
    return;
  }
  try {
    checkpoint::Reader reader(*environment_.disk, position_.checkpoint);
    hf::write_directory(*environment_.disk, reader, directory);
    summary_.export_failed = false;
    environment_.log->info(" wrote " + directory + " for Hugging Face");
  } catch (const base::Error& error) {
    environment_.log->warn(base::concat("checkpoint.export_hf: ", error.what(), "; `metroplex convert ",
                                        position_.checkpoint, " --to hf DIR` writes it"));
  }
}

void RunSaves::finish() {
  if (!background_) return;
  if (const auto outcome = background_->wait()) report(iteration_, *outcome);
}

}  // namespace metroplex::run

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
  const std::string& folder = run_.config().checkpoint.save;
  const bool is_reporter = run_.first_rank();
  base::Log& log = *run_.environment.log;
  run_.summary.last_save_failed = !outcome.saved;
  if (outcome.saved) {
    run_.summary.last_checkpoint = run_.position.checkpoint = outcome.path;
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
  run_.summary.on_disk = name + " could not be saved: " + outcome.problem + "; " + on_disk(run_.disk(), folder);
}

void RunSaves::save(bool last) {
  if (!background_) {
    iteration_ = run_.position.iteration;
    report(iteration_, save_state(*run_.assembly, run_.position, run_.disk()));
    return;
  }
  poll();
  if (last) {
    finish();
  } else if (!all_ranks_true(!background_->in_flight(), run_.world())) {
    run_.warn(base::concat("iteration ", run_.position.iteration, " is not saved: iteration ", iteration_,
                           " is still being written; the disk is slower than checkpoint.save_interval"));
    return;
  }
  iteration_ = run_.position.iteration;
  background_->begin(run_.position);
}

void RunSaves::poll() {
  if (!background_) return;
  if (const auto outcome = background_->take_finished()) report(iteration_, *outcome);
}

void RunSaves::export_last() {
  const std::string& directory = run_.config().checkpoint.export_hf;
  if (directory.empty() || !run_.first_rank()) return;
  run_.summary.export_failed = true;
  if (!has_current() || run_.summary.last_save_failed) {
    run_.warn("checkpoint.export_hf = " + directory + " is not written: the last checkpoint is missing");
    return;
  }
  if (run_.disk().exists(directory)) {  // check_export_target() accepted it because no step was left
    run_.summary.export_failed = false;
    run_.say(" checkpoint.export_hf = " + directory + " exists and is kept, because no steps were left");
    return;
  }
  try {
    checkpoint::Reader reader(run_.disk(), run_.position.checkpoint);
    hf::write_directory(run_.disk(), reader, directory);
    run_.summary.export_failed = false;
    run_.say(" wrote " + directory + " for Hugging Face");
  } catch (const base::Error& error) {
    run_.warn(base::concat("checkpoint.export_hf: ", error.what(), "; `metroplex convert ", run_.position.checkpoint,
                           " --to hf DIR` writes it"));
  }
}

void RunSaves::finish() {
  if (!background_) return;
  if (const auto outcome = background_->wait()) report(iteration_, *outcome);
}

}  // namespace metroplex::run

// The checkpoints of a training run: saves synchronously or in the background, and reports the outcome to log and
// summary.
#pragma once

#include <cstdint>
#include <optional>

#include "run/saving.h"
#include "run/run_context.h"

namespace metroplex::run {

// All members except poll() are collective. `run` must outlive this object.
class RunSaves {
 public:
  explicit RunSaves(RunContext& run) : run_(run) {
    if (run.config().checkpoint.async_save) background_.emplace(*run.assembly, run.disk());
  }

  // Saves the current position, in the background with checkpoint.async_save. If an earlier save is still in flight,
  // skips this save with a warning. The `last` save waits for it instead.
  void save(bool last);
  // Call between steps. Reports a background save that has ended on this rank.
  void poll();
  // Waits for the save in flight.
  void finish();
  // With checkpoint.export_hf, rank 0 writes the last checkpoint as a Hugging Face directory if it is current. Errors
  // become warnings, because the checkpoint itself exists.
  void export_last();
  // True if the position is saved or being saved, or was loaded from checkpoint.save.
  bool has_current() const { return iteration_ == run_.position.iteration; }
  void mark_loaded() { iteration_ = run_.position.iteration; }

 private:
  void report(int64_t iteration, const SaveOutcome& outcome);

  RunContext& run_;
  std::optional<BackgroundSaves> background_;
  int64_t iteration_ = -1;
};

}  // namespace metroplex::run

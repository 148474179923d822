// The checkpoints of a training run: which of them are written at once and which in the background, and what the log
// and the summary say of them.
#pragma once

#include <cstdint>
#include <optional>

#include "train/saving.h"
#include "train/trainer.h"

namespace metroplex::train {

// All members but look() are collective. What is given outlives this.
class RunSaves {
 public:
  RunSaves(Assembly& assembly, const TrainerEnvironment& environment, Position& position, RunSummary& summary)
      : a_(assembly), environment_(environment), position_(position), summary_(summary) {
    if (assembly.config.checkpoint.async_save) background_.emplace(assembly, *environment.disk);
  }

  // Saves the position. With checkpoint.async_save in the background; while an earlier save is under way this one is
  // left out, with a warning, unless it is the `last` one, which waits for it.
  void save(bool last);
  // Between steps: reports a save that has ended here since.
  void look();
  // Waits for the save under way.
  void finish();
  // checkpoint.export_hf: rank 0 writes the last checkpoint as a Hugging Face directory, if that is the position.
  // What goes wrong is a warning, since the checkpoint is there.
  void export_last();
  // The position has been saved, or is on its way; or it was loaded from where the run saves.
  bool has_current() const { return iteration_ == position_.iteration; }
  void loaded_from_here() { iteration_ = position_.iteration; }

 private:
  void report(int64_t iteration, const SaveOutcome& outcome);

  Assembly& a_;
  const TrainerEnvironment& environment_;
  Position& position_;
  RunSummary& summary_;
  std::optional<BackgroundSaves> background_;
  int64_t iteration_ = -1;  // saved, on its way or loaded
};

}  // namespace metroplex::train

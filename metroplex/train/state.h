// A training state on disk: parameters and optimizer state as pieces, where the schedules and the data stand as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "comm/world.h"
#include "train/assemble.h"

namespace metroplex::train {

// Where a run stands beside its tensors.
struct Position {
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t scheduled_samples = 0;  // of successful updates: where learning rate and weight decay stand
  int64_t skipped_iterations = 0;
};

struct SaveOutcome {
  bool saved = false;
  std::string path;     // of the checkpoint
  std::string problem;  // why not, the same on every rank; when saved, on rank 0: what could not be tidied up
};

// Collective. A failed save leaves older checkpoints and the run alone and says why.
SaveOutcome save_state(Assembly& assembly, const Position& position);

// Collective. Loads checkpoint.load (the newest good checkpoint of a directory, or checkpoint.ckpt_step) into the
// assembly, whatever layout wrote it. False when there is none (checkpoint.exit_on_missing_checkpoint makes that an
// error). `notes` tells what was passed over (damaged checkpoints, by name).
struct LoadOutcome {
  bool loaded = false;
  std::string path;
  std::string notes;
  Position position;
};
LoadOutcome load_state(Assembly& assembly, const std::string& directory);

}  // namespace metroplex::train

// A training state on disk: parameters and optimizer state as pieces, where the schedules and the data stand as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/tensor_source.h"
#include "comm/world.h"
#include "data/build.h"
#include "files/file_system.h"
#include "train/assemble.h"
#include "train/compatible.h"

namespace metroplex::train {

// Where a run stands beside its tensors.
struct Position {
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t scheduled_samples = 0;  // of successful updates: where learning rate and weight decay stand
  int64_t skipped_iterations = 0;
  std::string checkpoint = "";        // that it went on from or was saved to last, a path; empty: none
  data::TrainOrder train_order = {};  // on rank 0: RunData::train_order
};

struct SaveOutcome {
  bool saved = false;
  std::string path;     // of the checkpoint
  std::string problem;  // why not, the same on every rank; when saved, on rank 0: what could not be tidied up
  std::string note;     // on rank 0: what was removed beyond the run's own older checkpoints
};

// Collective. Takes one tensor of the state at a time: beside it there is room for one decoded tensor and a buffer of
// kHostBufferBytes (state_tensors.h). A failed save, for want of memory too, leaves older checkpoints and the run
// alone and says why.
SaveOutcome save_state(Assembly& assembly, const Position& position, files::FileSystem& disk);

// Collective. Fills the weights, and where there are main parameters those, from a source that holds nothing else, as
// a Hugging Face directory (hf/directory.h): a run may begin with them. Throws base::Error for a weight that the
// source lacks, and for one that no rank has a place for.
void load_weights_of(Assembly& assembly, checkpoint::TensorSource& source);
// From the directory of config.model.from, which must be given.
void load_weights_of_directory(Assembly& assembly, files::FileSystem& disk);

// What load_state() finds out ahead of the tensors: throws where the checkpoint is of another model, or a run that
// trains cannot go on from it; returns the differences that checkpoint.allow names.
std::vector<Difference> check_loadable(const config::Config& config, const text::TokenizerFiles* tokenizer,
                                       const files::Manifest& manifest, const std::string& path, bool trains);

// Collective. Loads checkpoint.load (the newest good checkpoint of a directory, or checkpoint.ckpt_step) into the
// assembly, whatever layout wrote it. False when there is none and a run may begin there (run_folders.h); else that
// is an error, and so is another model (compatible.h) and a tensor that no rank has a place for. `notes` tells what
// was passed over (damaged checkpoints, by name), and which differences were allowed. A run that goes on, on other
// data than `order` of rank 0 (Position::train_order), is refused (same_data.h).
struct LoadOutcome {
  bool loaded = false;
  std::string path;
  std::string notes;
  std::string metrics_file, expert_trace_file;  // of the run that saved it
  std::string branch_left;  // on rank 0: later checkpoints of the folder that is saved to, which are passed over
  Position position;
};
LoadOutcome load_state(Assembly& assembly, const std::string& directory, files::FileSystem& disk,
                       const data::TrainOrder& order = {});

}  // namespace metroplex::train

// A training state on disk: parameters and optimizer state as pieces, where the schedules and the data stand as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/save.h"
#include "checkpoint/tensor_source.h"
#include "comm/collectives.h"
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

// The ranks of a world as those of a checkpoint. Of a world without a recorder, so that another thread than the one
// that computes may speak with its peers.
class GroupExchange final : public checkpoint::Exchange {
 public:
  explicit GroupExchange(const comm::Group& group) : group_(group) {}
  int rank() const override { return group_.index(); }
  int size() const override { return group_.size(); }
  std::vector<std::string> gather(const std::string& text) override { return comm::gather_strings(text, group_); }
  std::string broadcast(const std::string& text) override { return comm::broadcast_string(text, group_); }

 private:
  comm::Group group_;
};

// What rank 0 writes beside the tensors: the position, the schedules, the configuration, the tokenizer's files.
// Waits for the device.
checkpoint::RunState run_state(const Assembly& assembly, const Position& position, files::FileSystem& disk);

// Collective. Fills the weights, and where there are main parameters those, from a source that holds nothing else, as
// a Hugging Face directory (hf/directory.h): a run may begin with them. A run that trains leaves out what
// checkpoint.load_only and load_except say, and adapters that the source lacks. Throws base::Error for any other
// weight that the source lacks, and for one that no rank has a place for. Returns, on rank 0, what was left out.
std::string load_weights_of(Assembly& assembly, checkpoint::TensorSource& source);
// From the directory of config.model.from, which must be given.
std::string load_weights_of_directory(Assembly& assembly, files::FileSystem& disk);

// What load_state() finds out ahead of the tensors: throws where the checkpoint is of another model, or a run that
// trains cannot go on from it; returns the differences that checkpoint.allow names.
std::vector<Difference> check_loadable(const config::Config& config, const text::TokenizerFiles* tokenizer,
                                       const files::Manifest& manifest, const std::string& path, bool trains);
// Throws base::Error("config") if load_state() would refuse the schedules of the checkpoint.
void check_schedule(const config::Config& config, int64_t data_parallel_size, const files::Manifest& manifest);

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
  std::string left_out;     // on rank 0: tensors that begin as in a new run (load_weights_of); with finetune only
  std::string branch_left;  // on rank 0: later checkpoints of the folder that is saved to, which are passed over
  Position position;
};
LoadOutcome load_state(Assembly& assembly, const std::string& directory, files::FileSystem& disk,
                       const data::TrainOrder& order = {});

}  // namespace metroplex::train

// A training state on disk: parameters and optimizer state as tensors, schedules and data position as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/save.h"
#include "checkpoint/tensor_source.h"
#include "comm/collectives.h"
#include "comm/world.h"
#include "data/build.h"
#include "files/file_system.h"
#include "step/assemble.h"
#include "run/compatible.h"

namespace metroplex::run {

struct Position {
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t scheduled_samples = 0;  // of successful updates; position of the LR and weight-decay schedules
  int64_t skipped_iterations = 0;
  std::string checkpoint = "";        // path of the checkpoint last loaded or saved; empty: none
  data::TrainOrder train_order = {};  // on rank 0: RunData::train_order
  std::shared_ptr<const text::TokenizerFiles> tokenizer =
      nullptr;  // saved with checkpoints; null: no tokenizer files
};

// Communication of a checkpoint's ranks over a communicator group. Requires a world without a recorder, because a
// thread other than the compute thread may use it.
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

// The metadata that rank 0 writes in addition to the tensors: position, schedules, configuration, tokenizer files.
// Waits for the device.
checkpoint::RunState run_state(const step::ProcessContext& process, const step::Optimization& optimization,
                               const Position& position, files::FileSystem& disk);

// Collective. Loads the weights, and main parameters if present, from a weights-only source such as a Hugging Face
// directory (hf/directory.h). A training run skips the tensors excluded by checkpoint.load_only and load_except, and
// adapters missing from the source. Throws base::Error for any other missing weight, and for a source tensor that no
// rank can use. On rank 0, returns the skipped tensors.
std::string load_from_source(step::Assembly& assembly, checkpoint::TensorSource& source);
// The same from the directory config.model.from, which must be set, with the adapters of config.peft.from.
std::string load_from_directory(step::Assembly& assembly, files::FileSystem& disk);

// The checks of load_state() that need no tensors. Throws if the checkpoint belongs to another model, or if a
// training run cannot resume from it. Returns the differences that checkpoint.allow names.
std::vector<Difference> check_loadable(const config::Config& config, const text::TokenizerFiles* tokenizer,
                                       const files::Manifest& manifest, const std::string& path, bool trains);
// Throws base::Error("config") if load_state() would reject the checkpoint's schedules.
void check_schedule(const config::Config& config, int64_t data_parallel_size, const files::Manifest& manifest);

// Collective. Loads checkpoint.load into the assembly; the checkpoint may have another layout. Uses the newest good
// checkpoint of a directory, or checkpoint.ckpt_step. Without a checkpoint, returns loaded = false if a run may start
// there (run_folders.h), and throws otherwise. Throws for another model (compatible.h), and for a tensor that no rank
// can use. `notes` lists damaged checkpoints and allowed differences. `expected` contains this run's
// tokenizer and, on rank 0, its order of training data; a resumed run throws if either differs (same_data.h).
struct LoadOutcome {
  bool loaded = false;
  std::string path;
  std::string notes;
  std::string metrics_file, expert_trace_file;  // of the run that saved it
  std::string
      skipped_tensors;  // on rank 0: tensors that keep their initial values (load_from_source); with finetune only
  std::string later_branch;  // on rank 0: later checkpoints in checkpoint.save, which are ignored
  Position position;
};
LoadOutcome load_state(step::Assembly& assembly, const std::string& directory, files::FileSystem& disk,
                       const Position& expected = {});

}  // namespace metroplex::run

// Writes checkpoints of a training state, synchronously or from a host copy while training continues.
#pragma once

#include <ATen/core/Tensor.h>

#include <future>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/save.h"
#include "files/file_system.h"
#include "step/assemble.h"
#include "run/state.h"

namespace metroplex::run {

struct SaveOutcome {
  bool saved = false;
  std::string path;     // of the checkpoint
  std::string problem;  // the error, the same on every rank; after a successful save: cleanup problems, on rank 0
  std::string note;     // on rank 0: removed checkpoints of other branches
};

// Collective. Processes one tensor at a time: extra memory is one decoded tensor and a buffer of kHostBufferBytes
// (state_tensors.h). A failed save, including out of memory, leaves older checkpoints and the run intact and reports
// the error.
SaveOutcome save_state(step::Assembly& assembly, const Position& position, files::FileSystem& disk);

// Saves one run from copies in host memory (checkpoint.async_save), one save at a time. The buffer has the size of
// this rank's output and is allocated once. Assembly and disk must outlive this object.
class BackgroundSaves {
 public:
  BackgroundSaves(step::Assembly& assembly, files::FileSystem& disk);
  // Waits for the save in flight and discards its outcome.
  ~BackgroundSaves() = default;

  // Collective; no rank may have a save in flight. Returns when the state has been copied. A thread then writes the
  // copy and communicates over Groups::checkpoint, which must have no other user until the save ends.
  void begin(const Position& position);
  // True on this rank from begin() until the outcome has been taken. Other ranks may finish at other times.
  bool in_flight() const { return outcome_.valid(); }
  // Returns the outcome of the save in flight if it has ended on this rank. Does not wait.
  std::optional<SaveOutcome> take_finished();
  // Waits for the save in flight and returns its outcome; nullopt without one. Throws if a peer was lost.
  std::optional<SaveOutcome> wait();

 private:
  std::vector<checkpoint::LocalPiece> copy_pieces(std::vector<checkpoint::LocalPiece> pieces);

  step::Assembly& assembly_;
  files::FileSystem& disk_;
  at::Tensor memory_;                 // bytes; pageable
  std::future<SaveOutcome> outcome_;  // from std::async, so its destructor waits
};

}  // namespace metroplex::run

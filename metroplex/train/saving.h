// Writing checkpoints of a training state: at once, or from a copy while the run goes on.
#pragma once

#include <ATen/core/Tensor.h>

#include <future>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/save.h"
#include "files/file_system.h"
#include "train/assemble.h"
#include "train/state.h"

namespace metroplex::train {

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

// Bytes of host memory that BackgroundSaves holds on this rank where the run saves with checkpoint.async_save; else
// 0.
int64_t copy_bytes(Assembly& assembly);

// Saves of one run from copies in host memory (checkpoint.async_save), one at a time. The memory, of the size of what
// this rank writes, is taken at the start and kept. The assembly and the disk outlive this.
class BackgroundSaves {
 public:
  BackgroundSaves(Assembly& assembly, files::FileSystem& disk);
  // Waits for the save under way; what becomes of it is lost.
  ~BackgroundSaves() = default;

  // Collective, with none under way on any rank. Returns when the state has been copied; a thread writes the copy and
  // speaks with its peers over Groups::checkpoint, which nothing else uses meanwhile.
  void begin(const Position& position);
  // On this rank, from begin() until an outcome has been taken. Other ranks finish at other times.
  bool under_way() const { return outcome_.valid(); }
  // The outcome of the save under way if it has ended here; never waits.
  std::optional<SaveOutcome> take_finished();
  // The outcome of the save under way, for which this waits; nullopt: there is none. Throws what comes of a lost
  // peer.
  std::optional<SaveOutcome> wait();

 private:
  std::vector<checkpoint::LocalPiece> copies_of(std::vector<checkpoint::LocalPiece> pieces);

  Assembly& a_;
  files::FileSystem& disk_;
  at::Tensor memory_;                 // bytes; pinned where the state is on a GPU
  std::future<SaveOutcome> outcome_;  // made by std::async: its destructor waits
};

}  // namespace metroplex::train

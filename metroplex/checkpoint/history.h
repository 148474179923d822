// Which checkpoints of a folder are the past of the one in use, and which are of a branch that was left: each names
// the one it went on from. Those of older programs do not; there the next lower iteration counts as the one before.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "files/file_system.h"

namespace metroplex::checkpoint {

struct History {
  std::vector<CheckpointName> past;   // the one in use, the one it went on from, and so on
  std::vector<CheckpointName> left;   // of branches that were left, newest first
  std::vector<CheckpointName> older;  // below the last of `past`, where it was cut short; newest first
};

// Of `names` (any order; `latest` is one of them). Reads a manifest a step, of which a damaged one says nothing;
// `past` ends after `most` names.
History history_of(files::FileSystem& disk, const std::string& root, std::vector<CheckpointName> names,
                   const CheckpointName& latest, size_t most = std::numeric_limits<size_t>::max());

}  // namespace metroplex::checkpoint

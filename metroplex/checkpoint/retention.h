// Which checkpoints of a folder are kept. Rank 0 calls this after a successful save.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "files/file_system.h"

namespace metroplex::checkpoint {

// Which checkpoints of a folder are the ancestors of the one in use, and which are on abandoned branches: each names
// its parent, the checkpoint that its run resumed from. Those of older programs do not name one; there the next lower
// iteration counts as the parent.

struct History {
  std::vector<CheckpointName> past;   // the one in use, its parent, and so on
  std::vector<CheckpointName> left;   // on abandoned branches, newest first
  std::vector<CheckpointName> older;  // below the last of `past`, where `most` cut it short; newest first
};

// `names` in any order, `latest` among them. Reads one manifest per ancestor; a damaged one names no parent. `past`
// ends after `most` names.
History history_of(files::FileSystem& disk, const std::string& root, std::vector<CheckpointName> names,
                   const CheckpointName& latest, size_t most = std::numeric_limits<size_t>::max());

struct Retention {
  int64_t keep_last = 0;        // keeps n: the one in use and its ancestors; 0: all, or one with retain_interval
  int64_t retain_interval = 0;  // always keeps iterations that are multiples of it; 0: none
};

// How many of History::past are kept as the newest; 0: all.
size_t kept_of_past(const Retention& retention);
// The ones to remove. Of an abandoned branch only the multiples of retain_interval are kept.
std::vector<CheckpointName> to_remove(const History& history, const Retention& retention);

struct RetentionResult {
  std::vector<std::string> problems;           // one line per failed removal; these must not end a run
  std::vector<CheckpointName> removed_branch;  // those on abandoned branches, newest first
};
RetentionResult apply_retention(files::FileSystem& disk, const std::string& root, const Retention& retention);

}  // namespace metroplex::checkpoint

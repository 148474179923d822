// Which checkpoints of a folder stay. Rank 0 calls this after a good save.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "checkpoint/history.h"
#include "files/file_system.h"

namespace metroplex::checkpoint {

struct Retention {
  int64_t keep_last = 0;  // the one in use and those it came from stay, n in all; 0: all, or with retain_interval 1
  int64_t retain_interval = 0;  // iterations that are multiples of it stay for good; 0: none
};

// How many of History::past stay for being the newest; 0: all do.
size_t kept_of_past(const Retention& retention);
// The ones to remove. A branch that was left counts for nothing: of it only the multiples stay.
std::vector<CheckpointName> to_remove(const History& history, const Retention& retention);

struct RetentionResult {
  std::vector<std::string> problems;           // what went wrong, one line a checkpoint: it must not end a run
  std::vector<CheckpointName> removed_branch;  // those of a branch that was left, newest first
};
RetentionResult apply_retention(files::FileSystem& disk, const std::string& root, const Retention& retention);

}  // namespace metroplex::checkpoint

// Which checkpoints of a folder stay. Rank 0 calls this after a good save.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "files/file_system.h"

namespace metroplex::checkpoint {

struct Retention {
  int64_t keep_last = 0;        // the newest n stay; 0: all, or with retain_interval the newest one
  int64_t retain_interval = 0;  // iterations that are multiples of it stay for good; 0: none
};

// The ones to remove, of `names` (any order). What `latest` names always stays.
std::vector<CheckpointName> to_remove(std::vector<CheckpointName> names, const CheckpointName& latest,
                                      const Retention& retention);

// Removes them. Returns what went wrong, one line a checkpoint: a failure to remove must not end a run.
std::vector<std::string> apply_retention(files::FileSystem& disk, const std::string& root,
                                         const Retention& retention);

}  // namespace metroplex::checkpoint

// The folder of a run's checkpoints:
//   iter_0000100/      complete; iter_0000100.2 if it was saved again while the first was in use
//   latest             name of the newest complete checkpoint, with a checksum; replaced atomically
//   .tmp-* .delete-*   leftovers of an interrupted save or removal; the next save removes them
//   .lock              held during a save
// The manifests define the ancestors of the newest checkpoint; retention depends on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "files/file_system.h"

namespace metroplex::checkpoint {

struct CheckpointName {
  int64_t iteration = 0;
  int64_t attempt = 1;
  bool operator==(const CheckpointName&) const = default;
};

std::string to_string(const CheckpointName& name);
std::optional<CheckpointName> parse_name(const std::string& text);

// Returns the names of all complete checkpoints, oldest first, without verifying checksums. Empty if `root` does not
// exist.
std::vector<CheckpointName> list_checkpoints(files::FileSystem& disk, const std::string& root);

inline constexpr const char* kRunConfig = "run.yaml";
// True for kRunConfig and for the leftovers of an interrupted write.
bool is_run_config(const std::string& name);

// Returns the names in `root` that are neither hidden nor part of this format. Empty if `root` does not exist.
std::vector<std::string> other_entries(files::FileSystem& disk, const std::string& root);

struct Latest {
  std::optional<CheckpointName> name;  // empty: no `latest`, or an unreadable one
  std::string problem;                 // why it is unreadable; "" if missing or valid
};
Latest read_latest(files::FileSystem& disk, const std::string& root);
void write_latest(files::FileSystem& disk, const std::string& root, const CheckpointName& name);

// Removes leftovers of saves and removals. Requires the lock.
void sweep(files::FileSystem& disk, const std::string& root);

// Renames the checkpoint to a hidden name before deleting it: a crash leaves a leftover, never a partial checkpoint.
void remove_checkpoint(files::FileSystem& disk, const std::string& root, const CheckpointName& name);

inline constexpr const char* kTemporaryPrefix = ".tmp-";
inline constexpr const char* kDeletePrefix = ".delete-";
inline constexpr const char* kLatest = "latest";
inline constexpr const char* kLock = ".lock";

// Divides the checkpoints of a folder into ancestors of the current one and abandoned branches. Each checkpoint
// stores its parent, from which its run resumed. Older program versions store none; then the next lower iteration
// counts as the parent.
struct History {
  std::vector<CheckpointName> past;   // the current checkpoint, its parent, and so on
  std::vector<CheckpointName> left;   // on abandoned branches, newest first
  std::vector<CheckpointName> older;  // older than the last of `past`, if `most` truncated it; newest first
};

// `names` may have any order and must contain `latest`. Reads one manifest per ancestor; a damaged one has no parent.
// Limits `past` to `most` names.
History read_history(files::FileSystem& disk, const std::string& root, std::vector<CheckpointName> names,
                     const CheckpointName& latest, size_t most = std::numeric_limits<size_t>::max());

struct Retention {
  int64_t keep_last = 0;        // the current checkpoint and n - 1 ancestors; 0: all, or one with retain_interval
  int64_t retain_interval = 0;  // always keeps iterations that are multiples of it; 0: none
};

// Returns how many of History::past are kept as the newest; 0: all.
size_t kept_of_past(const Retention& retention);
// Returns the checkpoints to remove. On abandoned branches only multiples of retain_interval are kept.
std::vector<CheckpointName> to_remove(const History& history, const Retention& retention);

struct RetentionResult {
  std::vector<std::string> problems;           // one line per failed removal; the caller must not abort the run
  std::vector<CheckpointName> removed_branch;  // those on abandoned branches, newest first
};
RetentionResult apply_retention(files::FileSystem& disk, const std::string& root, const Retention& retention);

}  // namespace metroplex::checkpoint

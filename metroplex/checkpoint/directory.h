// The folder that holds a run's checkpoints:
//   iter_0000100/      complete; iter_0000100.2 when it was saved a second time while the first was in use
//   latest             the name of the newest complete one, with a checksum; replaced atomically
//   .tmp-* .delete-*   leftovers of a save or removal that did not end, swept by the next save
//   .lock              held while a save is under way
// Which of them are the past of the newest follows from their manifests, and which are kept from that.
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

// The names of all complete checkpoints, oldest first, without verifying checksums. Empty when `root` does not exist.
std::vector<CheckpointName> list_checkpoints(files::FileSystem& disk, const std::string& root);

// The configuration of the run that saves into a folder.
inline constexpr const char* kRunConfig = "run.yaml";
// It, or what a kill leaves of its writing.
bool is_run_config(const std::string& name);

// Names in `root` that are neither hidden nor of this format. Empty when `root` does not exist.
std::vector<std::string> other_entries(files::FileSystem& disk, const std::string& root);

struct Latest {
  std::optional<CheckpointName> name;  // empty when there is no `latest`, or an unreadable one
  std::string problem;                 // why it is unreadable; "" when it is missing or sound
};
Latest read_latest(files::FileSystem& disk, const std::string& root);
void write_latest(files::FileSystem& disk, const std::string& root, const CheckpointName& name);

// Removes the leftovers of saves and removals. The caller holds the lock.
void sweep(files::FileSystem& disk, const std::string& root);

// Renames it to a hidden name, then deletes: a crash leaves a leftover, never a partial checkpoint.
void remove_checkpoint(files::FileSystem& disk, const std::string& root, const CheckpointName& name);

inline constexpr const char* kTemporaryPrefix = ".tmp-";
inline constexpr const char* kDeletePrefix = ".delete-";
inline constexpr const char* kLatest = "latest";
inline constexpr const char* kLock = ".lock";

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

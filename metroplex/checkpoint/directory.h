// The folder that holds a run's checkpoints:
//   iter_0000100/      complete; iter_0000100.2 when it was saved a second time while the first was in use
//   latest             the name of the newest complete one, with a checksum; replaced atomically
//   .tmp-* .delete-*   leftovers of a save or removal that did not end, swept by the next save
//   .lock              held while a save is under way
// retention.h says which of them are the past of the newest.
#pragma once

#include <cstdint>
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

}  // namespace metroplex::checkpoint

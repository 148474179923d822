// Only one run at a time may save into a folder. Two runs would treat each other's checkpoints as abandoned branches
// and remove them. The lock is held for the full run, and its file identifies the holder. An OS file lock ends with
// its process. On file systems without locks, the lock is valid while the process in the file is alive.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "files/file_system.h"

namespace metroplex::checkpoint {

inline constexpr const char* kRunLock = ".run";

// Identifies a process even if its pid is reused.
struct Holder {
  std::string user, host;
  int64_t pid = 0;
  int64_t start_ticks = 0;  // start time of the process, in clock ticks since boot
  std::string since;        // as text
  bool operator==(const Holder&) const = default;
};

Holder this_process();
std::string to_text(const Holder& holder);
// Returns nothing for other text, such as a partial write of a killed run.
std::optional<Holder> parse_holder(const std::string& text);
// True if the process is known to be alive: it runs on this machine and is the one that took the lock.
bool lives(const Holder& holder, const std::string& host);

// Throws if another process holds the lock, without taking it or waiting.
void check_unlocked(files::FileSystem& disk, const std::string& folder);

// Holds the lock from construction to destruction. Creates a missing folder, and removes it at the end if it is still
// empty. Waits some seconds for a run that is ending, then throws base::Error("checkpoint") with the holder.
class FolderLock {
 public:
  FolderLock(files::FileSystem& disk, const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  bool take(const Holder& me);

  files::FileSystem& disk_;
  std::string folder_, path_;
  bool made_folder_ = false;
  std::unique_ptr<files::FileLock> lock_;
};

}  // namespace metroplex::checkpoint

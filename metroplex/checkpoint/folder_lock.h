// Only one run at a time may save into a folder: two would take each other's checkpoints for abandoned branches and
// remove them. The lock is held for the whole run, and its file names the holder. An OS file lock ends with its
// process; on file systems without locks, the lock is valid while the process named in the file lives.
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
  int64_t start_ticks = 0;  // of the process, since the machine started
  std::string since;        // in words
  bool operator==(const Holder&) const = default;
};

Holder this_process();
std::string to_text(const Holder& holder);
// Empty for anything else, such as the text of a run that was killed while writing it.
std::optional<Holder> parse_holder(const std::string& text);
// Whether the process is known to be alive: it is on this machine, and it is the one that took the lock.
bool lives(const Holder& holder, const std::string& host);

// Throws what taking the lock would throw, without taking it or waiting for its holder.
void check_unlocked(files::FileSystem& disk, const std::string& folder);

// Held from construction, which creates a missing folder, to destruction, which removes such a folder if it is still
// empty. Waits some seconds for a run that is ending, then throws base::Error("checkpoint") that names the holder.
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

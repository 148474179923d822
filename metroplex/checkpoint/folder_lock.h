// One run saves into a folder at a time: two would each take the other's checkpoints for a branch that was left, and
// remove them. The lock is held as long as the run lives, the file says by whom. A kernel's lock ends with its
// process in whatever way; where a file system has none, the process that the file names is looked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "files/file_system.h"

namespace metroplex::checkpoint {

inline constexpr const char* kRunLock = ".run";

// A process as others can tell it from those that had its number before.
struct Holder {
  std::string user, host;
  int64_t pid = 0;
  int64_t start_ticks = 0;  // of the process, since the machine started
  std::string since;        // in words
  bool operator==(const Holder&) const = default;
};

Holder this_process();
std::string to_text(const Holder& holder);
// Empty for anything else, as of a run that was killed while it wrote it.
std::optional<Holder> parse_holder(const std::string& text);
// Whether the process is known to live: it is of this machine and still the one that took the lock.
bool lives(const Holder& holder, const std::string& host);

// Throws what taking the lock would, without taking it, or waiting for its holder.
void check_unlocked(files::FileSystem& disk, const std::string& folder);

// Held from its construction, which makes the folder where there is none, to its end, which removes such a folder
// again when nothing came into it. Waits some seconds for a run that is ending; then throws base::Error("checkpoint")
// that names who holds it.
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

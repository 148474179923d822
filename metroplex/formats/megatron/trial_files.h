// The files that a script writes during its trial exist in memory only. A file opened for writing becomes a memfd,
// later opens of its path return this memfd, and removed files stay hidden.
#pragma once

#include <map>
#include <set>
#include <string>

#include <sys/stat.h>

#include "megatron/trial.h"

namespace metroplex::megatron {

// RLIMIT_FSIZE of a trial, and the size limit of real files that a trial can append to.
inline constexpr size_t kMaxFileBytes = size_t{1} << 20;

class TrialFiles {
 public:
  // Opens `path` (absolute, without symbolic links) with the flags of open(2). Returns 0 and sets `file`, or returns
  // an error number. Returns kNotOurs if the kernel may open the file, which is then only read.
  int open(const std::string& path, int flags, Descriptor& file);
  // Returns 0 and sets `out` for a file of the trial, ENOENT for a removed one, kNotOurs for any other path.
  int read_status(const std::string& path, struct stat& out) const;
  // Removes a file, or every file below a folder.
  void remove(const std::string& path);
  bool empty() const { return files_.empty() && emptied_folders_.empty(); }
  size_t size() const { return files_.size(); }
  size_t bytes() const;

  static constexpr int kNotOurs = -1;

 private:
  bool is_hidden(const std::string& path) const;
  int add(const std::string& path, int flags);

  std::map<std::string, Descriptor> files_;  // a descriptor of -1: the file was removed
  std::set<std::string> emptied_folders_;
};

// Returns true for a device, and for a pipe that the process does not hold. Opening or reading these would change the
// device or consume input of another process.
bool is_foreign_stream(pid_t pid, int folder, const std::string& path);

// Returns `path` as the process sees it: absolute, without "..", and without symbolic links except in /dev and /proc.
// `folder` is the descriptor of openat(2).
std::string resolve_path(pid_t pid, int folder, const std::string& path);

}  // namespace metroplex::megatron

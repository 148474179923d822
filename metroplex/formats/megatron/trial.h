// Runs bash inside a seccomp filter and handles the system calls that the filter passes on. Bash is the only program
// that starts; every other start is recorded and refused. Files that the script writes exist in memory only
// (trial_files.h). All processes end with the trial or with this process. Time, memory, processes and output are
// limited.
#pragma once

#include <chrono>
#include <seccomp.h>
#include <string>
#include <sys/types.h>
#include <vector>

namespace metroplex::megatron {

// Descriptors in bash: the output for records, and a script that is not a file.
inline constexpr int kRecordFd = 199, kScriptFd = 198;
// Prefix of the text that replaces a program's output, "@not@run@TOOL@LINE@FILE@"; line and file may be empty.
inline constexpr const char* kMark = "@not@run@";

// Opening kRemoveFolder + PATH for writing removes the file PATH from the trial.
inline constexpr const char* kRemoveFolder = "/dev/metroplex-remove/";

struct Command {
  std::string folder;
  std::vector<std::string> words;
};

struct Trial {
  int status = 0;                // bash's exit code
  std::string record;            // data from kRecordFd
  std::string printed;           // the end of bash's standard output and error
  std::vector<Command> refused;  // programs that the trial did not start
};

// `words` are bash's arguments from $0 on; `script`, if not empty, is the content of kScriptFd. Throws
// base::Error("config") with the name `source` when a limit is exceeded, and if the kernel does not support the
// filter.
inline constexpr std::chrono::milliseconds kTrialTimeout = std::chrono::seconds(20);
Trial run_trial(const std::string& source, const std::vector<std::string>& words, const std::string& script,
                std::chrono::milliseconds patience = kTrialTimeout);

// The processes of a trial. A guard process leads their process group, and no process can leave it. The guard ends
// the group when this process ends for any reason.

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }
  void close();
  int get() const { return fd_; }

 private:
  int fd_;
};

struct TrialPipes {
  Descriptor record, printed, listener;  // our ends of the pipes
};

class TrialProcess {
 public:
  // Starts bash with `words`. Bash waits in its first execve for an answer through the listener. Throws
  // base::Error("config") with "the filter" and the reason if the filter is not available.
  TrialProcess(const std::vector<std::string>& words, const std::string& script, TrialPipes& pipes);
  ~TrialProcess() { end(); }
  TrialProcess(const TrialProcess&) = delete;
  TrialProcess& operator=(const TrialProcess&) = delete;

  void limit() const;           // sets limits of memory, CPU seconds and file bytes; while bash waits
  bool ended(int& status);      // returns whether bash has ended; sets its exit code
  void end();                   // ends the whole group
  size_t memory_bytes() const;  // private memory of the whole group

 private:
  void start_guard();

  Descriptor alive_;  // the guard reads the other end of this pipe
  pid_t guard_ = -1, bash_ = -1;
};

// Returns the path of bash; empty if it is not in the standard locations.
std::string bash_path();

// Returns the filter of a trial. It allows reading files, creating pipes and computing. It passes these calls on to
// trial.cpp: starting a program, calls with a path, creating a process, and mapping code. All other calls fail. Child
// processes inherit the filter. The process that becomes bash loads it and sends the listener through `hand_over`.
// Returns null if libseccomp cannot build the filter for this processor.
scmp_filter_ctx make_trial_filter(int hand_over);

}  // namespace metroplex::megatron

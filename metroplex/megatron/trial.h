// Runs bash inside a kernel filter of system calls and answers the calls that the filter passes on. Bash is the only
// program that starts; every other start is recorded and refused. Files that the script writes exist in memory only
// (trial_files.h). All processes end with the trial or with this process. Time, memory, processes and output have
// limits.
#pragma once

#include <chrono>
#include <seccomp.h>
#include <string>
#include <sys/types.h>
#include <vector>

namespace metroplex::megatron {

// Of bash: where it writes its records, and where it finds a script of which there is no file.
inline constexpr int kRecordFd = 199, kScriptFd = 198;
// Begins what stands in the place of a program's output, "@not@run@TOOL@LINE@FILE@"; line and file may be empty.
inline constexpr const char* kMark = "@not@run@";

// Opening kRemoveFolder + PATH for writing removes the file PATH from the trial.
inline constexpr const char* kRemoveFolder = "/dev/metroplex-remove/";

struct Command {
  std::string folder;
  std::vector<std::string> words;
};

struct Trial {
  int status = 0;                // bash's exit code
  std::string record;            // what came through kRecordFd
  std::string printed;           // the end of its standard output and error
  std::vector<Command> refused;  // programs that were not started
};

// `words` are the words of bash from $0 on; `script`, if not empty, is the content of kScriptFd. Throws
// base::Error("config") with the name `source` at a limit, and if the kernel has no such filter.
inline constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(20);
Trial run_trial(const std::string& source, const std::vector<std::string>& words, const std::string& script,
                std::chrono::milliseconds patience = kPatience);

// The processes of a trial. A guard leads their process group, which nothing in it can leave; it
// ends all of them when we do, by whatever means.

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
  Descriptor record, printed, listener;  // our ends
};

class TrialProcess {
 public:
  // Starts bash with `words`; it waits in its first execve until the listener is answered. Throws
  // base::Error("config") with "the filter" and the reason where it cannot be had.
  TrialProcess(const std::vector<std::string>& words, const std::string& script, TrialPipes& pipes);
  ~TrialProcess() { end(); }
  TrialProcess(const TrialProcess&) = delete;
  TrialProcess& operator=(const TrialProcess&) = delete;

  void limit() const;           // memory, seconds of a processor, bytes in files; while bash waits
  bool ended(int& status);      // bash has, and its exit code
  void end();                   // the whole group
  size_t memory_bytes() const;  // private memory of the whole group

 private:
  void start_guard();

  Descriptor alive_;  // the guard reads its other end
  pid_t guard_ = -1, bash_ = -1;
};

// Where bash is; empty: nowhere that it is looked for.
std::string bash_path();

// Returns the filter of a trial. It allows reading files, making pipes and computing. It passes these calls on to
// trial.cpp: starting a program, calls with a path, making a process, and mapping code. All other calls fail. Child
// processes inherit the filter. The process that becomes bash loads it and sends the listener through `hand_over`.
// Returns null if libseccomp cannot build the filter for this processor.
scmp_filter_ctx make_trial_filter(int hand_over);

}  // namespace metroplex::megatron

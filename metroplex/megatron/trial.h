// Inside the room: bash, run behind a kernel filter, and the answers to what it asks of us. The first
// program that is started is bash, and the only one: every other start is written down and refused. What would be
// written into files goes nowhere. The whole process tree ends with the trial, or with us, and has limits of time,
// memory, processes and output.
#pragma once

#include <seccomp.h>
#include <string>
#include <sys/types.h>
#include <vector>

namespace metroplex::megatron {

// Of bash: where it writes its records, and where it finds a script of which there is no file.
inline constexpr int kRecordFd = 199, kScriptFd = 198;
// Begins what stands in the place of a program's output, "@not@run@TOOL@LINE@FILE@"; line and file may be empty.
inline constexpr const char* kMark = "@not@run@";

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

// `words` are bash's own from $0 on; `script`, if not empty, is what kScriptFd reads. Throws base::Error("config"),
// `source` named, at a limit and where there is no such filter.
Trial run_trial(const std::string& source, const std::vector<std::string>& words, const std::string& script);

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

  void limit() const;       // memory, seconds of a processor, bytes in files; while bash waits
  bool ended(int& status);  // bash has, and its exit code
  void end();               // the whole group

 private:
  void start_guard();

  Descriptor alive_;  // the guard reads its other end
  pid_t guard_ = -1, bash_ = -1;
};

// Where bash is; empty: nowhere that it is looked for.
std::string bash_path();

// What the kernel lets the trial run of a launch script do. It reads files, makes pipes and copies
// of itself, and computes. Three kinds of calls are asked of us (trial.cpp answers): starting a program, of which the
// first alone is let through, opening a file in a way that could change it, and making a process. Everything else
// does not exist there, and its copies inherit this.

// To be loaded by the process that becomes bash; `hand_over` is the socket that it may send the listener through.
// Null where libseccomp cannot express it here.
scmp_filter_ctx make_trial_filter(int hand_over);

}  // namespace metroplex::megatron

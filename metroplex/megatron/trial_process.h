// Inside the room: the processes of a trial. A guard leads their process group, which nothing in it can leave; it
// ends all of them when we do, by whatever means.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

namespace metroplex::megatron {

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

}  // namespace metroplex::megatron

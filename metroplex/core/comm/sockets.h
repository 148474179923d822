// Finds and controls sockets that libraries opened in this process, through /proc/self/fd.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace metroplex::comm {

// Owns a file descriptor; -1: none.
class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd();
  int get() const { return fd_; }

 private:
  int fd_;
};

// Returns the descriptors of listening sockets, keyed by inode. The key is not the descriptor, because other threads
// may reuse it.
std::map<uint64_t, int> listening_sockets();

// Makes the kernel drop packets for new connections to this listening socket. Existing connections continue. The
// owner may keep, poll and close the descriptor.
void refuse_connections(int listening_fd);

// Limits every blocking read and write on connections to remote `port` to `limit`.
void limit_calls(uint16_t port, std::chrono::seconds limit);

// Closes the connections to `port` every `limit` during its lifetime. This ends library calls on them that have no
// limit of their own.
class CallLimit {
 public:
  CallLimit(uint16_t port, std::chrono::seconds limit);
  ~CallLimit();
  CallLimit(const CallLimit&) = delete;
  CallLimit& operator=(const CallLimit&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace metroplex::comm

// The sockets of this process that libraries opened: found through /proc/self/fd.
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

// Closes its descriptor; -1: none.
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

// Descriptors of the sockets that accept connections, by inode: a descriptor is used again, by other threads too.
std::map<uint64_t, int> listening_sockets();

// From now on the kernel drops every packet for a new connection to this listening socket. Existing connections
// continue. The owner may keep, poll and close the descriptor.
void refuse_connections(int listening_fd);

// Every blocking read and write on the connections to `port` of another socket fails after `limit`.
void limit_calls(uint16_t port, std::chrono::seconds limit);

// While it lives: cuts the connections to `port` every `limit`, so that a library's call without a limit on one of
// them ends.
class CallLimit {
 public:
  CallLimit(uint16_t port, std::chrono::seconds limit);
  ~CallLimit();
  CallLimit(const CallLimit&) = delete;
  CallLimit& operator=(const CallLimit&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace metroplex::comm

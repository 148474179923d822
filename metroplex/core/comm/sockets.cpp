#include "comm/sockets.h"

#include <dirent.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

namespace metroplex::comm {
namespace {

template <class Which>
std::vector<int> descriptors(const Which& which) {
  std::vector<int> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  if (!folder) return found;
  while (const dirent* const entry = ::readdir(folder.get())) {
    char* end = nullptr;
    const long fd = std::strtol(entry->d_name, &end, 10);
    if (end != entry->d_name && *end == '\0' && which(static_cast<int>(fd))) found.push_back(static_cast<int>(fd));
  }
  return found;
}

std::vector<int> connections_to(uint16_t port) {
  return descriptors([port](int fd) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return false;
    if (peer.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in*>(&peer)->sin_port) == port;
    return peer.ss_family == AF_INET6 && ntohs(reinterpret_cast<sockaddr_in6*>(&peer)->sin6_port) == port;
  });
}

}  // namespace

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) ::close(fd_);
}

std::map<uint64_t, int> listening_sockets() {
  std::map<uint64_t, int> found;
  descriptors([&](int fd) {
    int accepts = 0;
    socklen_t size = sizeof accepts;
    struct stat file {};
    const bool listens = ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) == 0 && accepts != 0;
    if (listens && ::fstat(fd, &file) == 0) found[file.st_ino] = fd;
    return listens;
  });
  return found;
}

void refuse_connections(int listening_fd) {
  sock_filter drop{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &drop};
  ::setsockopt(listening_fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

void limit_calls(uint16_t port, std::chrono::seconds limit) {
  const timeval time{limit.count(), 0};
  for (const int fd : connections_to(port)) {
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
  }
}

CallLimit::CallLimit(uint16_t port, std::chrono::seconds limit)
    : thread_([this, port, limit] {
        std::unique_lock lock(mutex_);
        while (!changed_.wait_for(lock, limit, [this] { return stopping_; })) {
          for (const int fd : connections_to(port)) ::shutdown(fd, SHUT_RDWR);
        }
      }) {}

CallLimit::~CallLimit() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace metroplex::comm

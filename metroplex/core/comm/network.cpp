#include "comm/network.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>
#include <thread>

#include "base/error.h"

namespace metroplex::comm {
namespace {

constexpr int kBacklog = 1024;

std::string numeric(const sockaddr* address) {
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST] = "";
  ::getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

struct FreeList {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeList>;

Addresses resolve(const std::string& host, uint16_t port, int type, int flags) {
  addrinfo hints{};
  hints.ai_socktype = type;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  return Addresses(error == 0 ? list : nullptr);
}

}  // namespace

bool is_loopback(const std::string& host) {
  return host == "localhost" || host.rfind("127.", 0) == 0 || host == "::1";
}

std::vector<Interface> network_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, FreeList> list(first);
  std::vector<Interface> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family || (entry->ifa_flags & IFF_UP) == 0)
        continue;
      const std::string name = entry->ifa_name;
      if (std::none_of(found.begin(), found.end(), [&](const Interface& i) { return i.name == name; }))
        found.push_back({name, numeric(entry->ifa_addr)});
    }
  }
  return found;
}

std::vector<std::string> interface_addresses(const std::string& names, const std::string& source) {
  const std::vector<Interface> interfaces = network_interfaces();
  std::vector<std::string> addresses;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    const auto found = std::find_if(interfaces.begin(), interfaces.end(),
                                    [&](const Interface& interface) { return interface.name == name; });
    std::string known;
    for (const Interface& interface : interfaces)
      known += (known.empty() ? "" : ", ") + interface.name + " (" + interface.address + ")";
    MPX_CHECK(found != interfaces.end(), "config", source, " is '", names, "', but this machine has no interface '",
              name, "' with an address; it has ", known);
    addresses.push_back(found->address);
  }
  MPX_CHECK(!addresses.empty(), "config", source, " does not name an interface");
  return addresses;
}

std::string route_address(const std::string& master, bool multi_machine) {
  std::string local_address = "127.0.0.1";
  const Addresses list = resolve(master, 9, SOCK_DGRAM, 0);  // no packet is sent: the kernel only chooses the route
  const int fd = list ? ::socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (fd >= 0 && ::connect(fd, list->ai_addr, list->ai_addrlen) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0)
    local_address = numeric(reinterpret_cast<sockaddr*>(&address));
  if (fd >= 0) ::close(fd);
  if (!multi_machine || !is_loopback(local_address)) return local_address;
  for (const Interface& interface : network_interfaces()) {
    if (!is_loopback(interface.address)) return interface.address;
  }
  return local_address;
}

std::string resolve_error(const std::string& host, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kPause{500};
  const auto end = std::chrono::steady_clock::now() + patience;
  for (;; std::this_thread::sleep_for(kPause)) {
    addrinfo* list = nullptr;
    const int error = ::getaddrinfo(host.c_str(), nullptr, nullptr, &list);
    const Addresses freed(error == 0 ? list : nullptr);
    if (error == 0) return "";
    if (std::chrono::steady_clock::now() + kPause > end) return ::gai_strerror(error);
  }
}

void raise_file_limit(int64_t world_size) {
  // Rank 0 opens the most files: one connection to each other rank, plus one store and one watch connection from
  // each. Training with saves opened 22 further files; 10 more are reserved for data and reports.
  constexpr int64_t kFilesPerRank = 32, kFilesPerPeer = 3;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit raised{limit.rlim_max, limit.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  const int64_t needed = kFilesPerRank + kFilesPerPeer * world_size;
  MPX_CHECK(limit.rlim_cur >= static_cast<rlim_t>(needed), "config", "RLIMIT_NOFILE = ", limit.rlim_cur, ": with ",
            world_size, " ranks over gloo, a process needs up to ", needed,
            " files and connections; raise the limit (ulimit -Hn, or LimitNOFILE of the service), start fewer "
            "ranks, or use run.backend = threads on one machine");
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name[0] == '\0' ? "unnamed" : name;
}

std::string peer_address(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  return numeric(reinterpret_cast<sockaddr*>(&address));
}

static int listen_on(const addrinfo& at, int& error) {
  const int one = 1, zero = 0;
  const int fd = ::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (fd >= 0 && at.ai_family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
  if (fd >= 0 && ::bind(fd, at.ai_addr, at.ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0) return fd;
  error = errno;
  if (fd >= 0) ::close(fd);
  return -1;
}

int listen_at_name(const std::string& host, uint16_t port, bool multi_machine) {
  int error = 0;
  const auto listen_at_first = [&](const Addresses& list) {
    for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
      if (multi_machine && is_loopback(numeric(at->ai_addr))) return -1;
      const int fd = listen_on(*at, error);
      if (fd >= 0 || error == EADDRINUSE) return fd;
    }
    return -1;
  };
  int fd = listen_at_first(resolve(host, port, SOCK_STREAM, 0));
  for (const char* const any : {"::", "0.0.0.0"}) {
    if (fd < 0 && error != EADDRINUSE) fd = listen_at_first(resolve(any, port, SOCK_STREAM, AI_NUMERICHOST));
  }
  MPX_CHECK(fd >= 0, "comm", "port ", port, " of ", host, ": ",
            error == EADDRINUSE ? "is in use by another program, or by a second process that was started as rank 0; "
                                  "choose another master port, or give each process its own rank"
                                : std::strerror(error));
  return fd;
}

int connect_by_name(const std::string& host, uint16_t port, std::chrono::milliseconds timeout, std::string& error) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLongestPause{1000}, kLongestTry{5000};
  const auto end = Clock::now() + timeout;
  error = "no answer";
  for (std::chrono::milliseconds pause{20};; pause = std::min(2 * pause, kLongestPause)) {
    const Addresses list = resolve(host, port, SOCK_STREAM, 0);
    for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
      const int fd = connect_to(numeric(at->ai_addr), port, std::clamp(left, pause, kLongestTry), error);
      if (fd >= 0) return fd;
    }
    if (Clock::now() + pause > end) return -1;
    std::this_thread::sleep_for(pause);
  }
}

std::pair<int, uint16_t> listen_at(const std::string& address) {
  const Addresses list = resolve(address, 0, SOCK_STREAM, AI_NUMERICHOST | AI_PASSIVE);
  MPX_CHECK(list, "comm", "'", address, "' is not an address of this machine");
  const int fd = ::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  const bool listens = fd >= 0 && ::bind(fd, list->ai_addr, list->ai_addrlen) == 0 && ::listen(fd, 128) == 0 &&
                       ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0;
  if (!listens) {
    const std::string error = std::strerror(errno);
    if (fd >= 0) ::close(fd);
    throw base::Error("comm", base::concat("cannot listen at ", address, ": ", error));
  }
  const bool four = bound.ss_family == AF_INET;
  return {fd, ntohs(four ? reinterpret_cast<sockaddr_in*>(&bound)->sin_port
                         : reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port)};
}

int connect_to(const std::string& address, uint16_t port, std::chrono::milliseconds timeout, std::string& error) {
  const Addresses list = resolve(address, port, SOCK_STREAM, AI_NUMERICHOST);
  const int fd = list ? ::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
  int failure = fd >= 0 ? 0 : errno;
  if (fd >= 0 && ::connect(fd, list->ai_addr, list->ai_addrlen) != 0) {
    failure = errno;
    pollfd ready{fd, POLLOUT, 0};
    if (failure == EINPROGRESS && ::poll(&ready, 1, static_cast<int>(timeout.count())) == 1) {
      socklen_t size = sizeof failure;
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size);
    }
  }
  if (failure == 0) return fd;
  error = failure == EINPROGRESS ? "no answer" : std::strerror(failure);
  if (fd >= 0) ::close(fd);
  return -1;
}

void prepare_socket(int fd, std::chrono::seconds silence) {
  const auto set = [&](int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); };
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int seconds = static_cast<int>(silence.count());
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, seconds / 4);
  set(IPPROTO_TCP, TCP_KEEPINTVL, seconds / 4);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);
}

}  // namespace metroplex::comm

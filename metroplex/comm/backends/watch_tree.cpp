#include "comm/backends/watch_tree.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "base/error.h"
#include "comm/network.h"
#include "comm/backends/tree.h"

namespace metroplex::comm {
namespace {

constexpr char kHello = 'h', kCause = 'c', kDone = 'd', kOver = 'o';

// Who connects and does not say who it is: how many are borne, for how long, and for how long where they are too
// many.
constexpr std::ptrdiff_t kMostStrangers = 256;
constexpr std::chrono::milliseconds kHelloTime{5000}, kHelloTimeInACrowd{1000};
constexpr std::chrono::milliseconds kPause{100};  // of accepting, when the process has no more files

std::string place_key(int rank) { return "watch/" + std::to_string(rank); }

}  // namespace

WatchTree::WatchTree(WatchOptions options)
    : options_(std::move(options)), children_(tree_children(options_.rank, options_.world_size)) {
  if (options_.world_size == 1) return;
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  MPX_CHECK(wake_fd_ >= 0, "comm", "no eventfd: ", std::strerror(errno));
  if (!children_.empty()) listen();
  thread_ = std::thread([this] { work(); });
  try {
    if (options_.rank != 0) join_parent();
  } catch (...) {
    stop();
    throw;
  }
}

WatchTree::~WatchTree() { stop(); }

void WatchTree::stop() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
  for (const auto& [fd, link] : links_) ::close(fd);
  links_.clear();
  if (listen_fd_ >= 0) ::close(listen_fd_);
  if (wake_fd_ >= 0) ::close(wake_fd_);
  listen_fd_ = wake_fd_ = -1;
}

void WatchTree::listen() {
  const auto [fd, port] = listen_at(options_.address);
  listen_fd_ = fd;
  secret_ = random_secret();
  options_.publish(place_key(options_.rank), options_.address + " " + std::to_string(port) + " " + secret_);
}

void WatchTree::join_parent() {
  const int parent = tree_parent(options_.rank);
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  std::optional<std::string> place;
  for (auto pause = std::chrono::milliseconds(2); !(place = options_.look_up(place_key(parent)));
       pause = std::min(2 * pause, std::chrono::milliseconds(1000))) {
    if (const auto cause = options_.look_up(kCauseKey)) throw PeerFailure(*cause);
    MPX_CHECK(std::chrono::steady_clock::now() < deadline, "comm", options_.describe(parent),
              " did not start within ", static_cast<double>(options_.timeout.count()) / 1000, " s");
    std::this_thread::sleep_for(pause);
  }
  std::istringstream words(*place);
  std::string address, secret, error;
  uint16_t port = 0;
  words >> address >> port >> secret;
  const int fd = connect_to(address, port, kSilence, error);
  if (fd < 0) {
    if (const auto cause = options_.look_up(kCauseKey)) throw PeerFailure(*cause);
    throw PeerFailure(options_.describe(parent) + " died, or cannot be reached at " + address + " (" + error +
                      "); where a machine has several networks, run.network_interface chooses one");
  }
  prepare_socket(fd, kSilence);
  {
    const std::lock_guard lock(mutex_);
    WatchLink& link = links_[fd];
    link.rank = parent;
    link.put(kHello, secret + " " + std::to_string(options_.rank) + "/" + std::to_string(options_.world_size));
    if (cause_) link.put(kCause, *cause_);  // of a child that came and went
  }
  wake();
}

void WatchTree::wake() {
  const uint64_t one = 1;
  if (wake_fd_ >= 0) [[maybe_unused]]
    const ssize_t written = ::write(wake_fd_, &one, sizeof one);
}

bool WatchTree::flushed() const {
  return std::all_of(links_.begin(), links_.end(), [](const auto& entry) { return entry.second.out.empty(); });
}

void WatchTree::tell(const std::string& cause) {
  std::unique_lock lock(mutex_);
  if (options_.world_size == 1 || cause_) return;
  spread(cause, -1);
  wake();
  changed_.wait_for(lock, std::chrono::milliseconds(300), [&] { return flushed(); });
}

void WatchTree::leave() {
  std::unique_lock lock(mutex_);
  if (options_.world_size == 1) return;
  leaving_ = true;
  wake();
  changed_.wait_for(lock, options_.timeout, [&] { return cause_ || (over_ && flushed()); });
}

// Under the lock: remembers the cause and puts it to all other links.
void WatchTree::spread(const std::string& cause, int except_fd) {
  cause_ = cause;
  for (auto& [fd, link] : links_) {
    if (fd != except_fd && link.rank >= 0) link.put(kCause, cause);
  }
}

void WatchTree::flush(int fd, WatchLink& link) {
  while (!link.out.empty()) {
    const ssize_t sent = ::send(fd, link.out.data(), link.out.size(), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (sent < 0) link.out.clear();  // reading tells that it is lost
    else link.out.erase(0, static_cast<size_t>(sent));
  }
}

// Under the lock: says up when this subtree is leaving, and down when all ranks are.
void WatchTree::settle() {
  if (!leaving_ || said_done_ || cause_) return;
  const auto done = std::count_if(links_.begin(), links_.end(), [](const auto& entry) { return entry.second.done; });
  if (done < static_cast<std::ptrdiff_t>(children_.size())) return;
  said_done_ = true;
  over_ = options_.rank == 0;
  for (auto& [fd, link] : links_) {
    if (over_) link.put(kOver, "");
    else if (link.rank == tree_parent(options_.rank)) link.put(kDone, "");
  }
}

void WatchTree::work() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    settle();
    turn_strangers_away();
    std::vector<pollfd> waiting{{wake_fd_, POLLIN, 0}, {accepting() ? listen_fd_ : -1, POLLIN, 0}};
    for (auto& [fd, link] : links_) {
      flush(fd, link);
      waiting.push_back({fd, static_cast<short>(link.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    const int patience = num_strangers() > 0 || out_of_files_ ? static_cast<int>(kPause.count()) : -1;
    changed_.notify_all();
    lock.unlock();
    if (heard_) {  // after it was handed on
      options_.on_failure(*heard_);
      heard_.reset();
    }
    ::poll(waiting.data(), waiting.size(), patience);
    lock.lock();
    uint64_t count = 0;
    if (waiting[0].revents != 0) [[maybe_unused]]
      const ssize_t size = ::read(wake_fd_, &count, sizeof count);
    if (waiting[1].revents != 0) accept_child();
    for (size_t i = 2; i < waiting.size(); ++i) {
      if ((waiting[i].revents & ~POLLOUT) != 0) read_from(waiting[i].fd);
    }
  }
}

std::ptrdiff_t WatchTree::num_strangers() const {
  return std::count_if(links_.begin(), links_.end(), [](const auto& entry) { return entry.second.rank < 0; });
}

bool WatchTree::accepting() const {
  return listen_fd_ >= 0 && num_strangers() < kMostStrangers && (!out_of_files_ || Clock::now() >= *out_of_files_);
}

// Strangers that said nothing in their time; all of them, and the port with them, once every child is here.
void WatchTree::turn_strangers_away() {
  const bool all_here = joined_.size() == children_.size();
  const bool crowd = num_strangers() >= kMostStrangers || out_of_files_;
  const auto time = crowd ? kHelloTimeInACrowd : kHelloTime;
  for (auto entry = links_.begin(); entry != links_.end();) {
    const auto [fd, link] = *entry++;
    if (link.rank < 0 && (all_here || Clock::now() - link.since > time)) drop(fd);
  }
  if (out_of_files_ && Clock::now() >= *out_of_files_) out_of_files_.reset();
  if (!all_here || listen_fd_ < 0) return;
  ::close(listen_fd_);
  listen_fd_ = -1;
}

void WatchTree::accept_child() {
  const int fd = ::accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    const bool passing = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED;
    if (!passing) out_of_files_ = Clock::now() + kPause;  // the connection stays and would wake us at once again
    return;
  }
  prepare_socket(fd, kSilence);
  links_[fd] = {};
}

void WatchTree::read_from(int fd) {
  const auto found = links_.find(fd);
  if (found == links_.end()) return;
  WatchLink& link = found->second;
  char buffer[4096];
  ssize_t size = 0;
  while ((size = ::recv(fd, buffer, std::min(sizeof buffer, link.room()), 0)) > 0) {
    link.in.append(buffer, static_cast<size_t>(size));
    bool refused = false;
    while (const auto message = link.take(refused)) {
      if (!handle(fd, link, *message)) return drop(fd);
    }
    if (refused) return drop(fd);
  }
  const bool ended = size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  if (!ended) return;
  const int rank = link.rank;
  drop(fd);
  if (rank < 0 || over_ || cause_) return;
  const std::string cause = options_.describe(rank) + " died or closed its connection";
  spread(cause, -1);
  heard_ = cause;
}

void WatchTree::drop(int fd) {
  links_.erase(fd);
  ::close(fd);
}

// False: this is none of our ranks.
bool WatchTree::handle(int fd, WatchLink& link, const WatchMessage& message) {
  if (link.rank < 0) {
    for (const int child : children_) {
      const std::string hello = secret_ + " " + std::to_string(child) + "/" + std::to_string(options_.world_size);
      if (message.kind != kHello || !equal_secrets(message.text, hello) || joined_.contains(child)) continue;
      link.rank = child;
      joined_.insert(child);
    }
    if (link.rank >= 0 && cause_) link.put(kCause, *cause_);
    return link.rank >= 0;
  }
  if (message.kind == kCause && !cause_) {
    spread(message.text, fd);
    heard_ = message.text;
  } else if (message.kind == kDone) {
    link.done = true;
  } else if (message.kind == kOver) {
    over_ = true;
    for (auto& [other, child] : links_) {
      if (other != fd && child.rank >= 0) child.put(kOver, "");
    }
  }
  return true;
}

}  // namespace metroplex::comm

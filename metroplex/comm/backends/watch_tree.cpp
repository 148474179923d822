#include "comm/backends/watch_tree.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "comm/network.h"
#include "comm/rank_tree.h"

namespace metroplex::comm {
namespace {

// A message: one letter, the length in four bytes, the text.
constexpr char kHello = 'h', kCause = 'c', kDone = 'd', kOver = 'o';
constexpr size_t kHead = 5, kLongest = 1 << 16;

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
  options_.publish(place_key(options_.rank), options_.address + " " + std::to_string(port));
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
  const size_t space = place->find(' ');
  const std::string address = place->substr(0, space);
  std::string error;
  const int fd = connect_to(address, static_cast<uint16_t>(std::stoi(place->substr(space + 1))), kSilence, error);
  if (fd < 0) {
    if (const auto cause = options_.look_up(kCauseKey)) throw PeerFailure(*cause);
    throw PeerFailure(options_.describe(parent) + " died, or cannot be reached at " + address + " (" + error +
                      "); where a machine has several networks, run.network_interface chooses one");
  }
  prepare_socket(fd, kSilence);
  {
    const std::lock_guard lock(mutex_);
    Link& link = links_[fd];
    link.rank = parent;
    put(link, kHello, std::to_string(options_.rank) + "/" + std::to_string(options_.world_size));
    if (cause_) put(link, kCause, *cause_);  // of a child that came and went
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
    if (fd != except_fd && link.rank >= 0) put(link, kCause, cause);
  }
}

void WatchTree::put(Link& link, char kind, const std::string& text) {
  const auto size = static_cast<uint32_t>(std::min(text.size(), kLongest));
  link.out += kind;
  for (int shift = 0; shift < 32; shift += 8) link.out += static_cast<char>(size >> shift & 0xff);
  link.out += text.substr(0, size);
}

void WatchTree::flush(int fd, Link& link) {
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
    if (over_) put(link, kOver, "");
    else if (link.rank == tree_parent(options_.rank)) put(link, kDone, "");
  }
}

void WatchTree::work() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    settle();
    std::vector<pollfd> waiting{{wake_fd_, POLLIN, 0}, {listen_fd_, POLLIN, 0}};
    for (auto& [fd, link] : links_) {
      flush(fd, link);
      waiting.push_back({fd, static_cast<short>(link.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    changed_.notify_all();
    lock.unlock();
    if (heard_) {  // after it was handed on
      options_.on_failure(*heard_);
      heard_.reset();
    }
    ::poll(waiting.data(), waiting.size(), -1);
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

void WatchTree::accept_child() {
  const int fd = ::accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  prepare_socket(fd, kSilence);
  links_[fd] = {};
}

void WatchTree::read_from(int fd) {
  const auto found = links_.find(fd);
  if (found == links_.end()) return;
  Link& link = found->second;
  char buffer[4096];
  ssize_t size = 0;
  while ((size = ::recv(fd, buffer, sizeof buffer, 0)) > 0) link.in.append(buffer, static_cast<size_t>(size));
  const bool ended = size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  while (link.in.size() >= kHead) {
    uint32_t length = 0;
    for (int byte = 0; byte < 4; ++byte)
      length |= static_cast<uint32_t>(static_cast<unsigned char>(link.in[1 + static_cast<size_t>(byte)])) << 8 * byte;
    if (length > kLongest) return drop(fd);
    if (link.in.size() < kHead + length) break;
    const char kind = link.in[0];
    const std::string text = link.in.substr(kHead, length);
    link.in.erase(0, kHead + length);
    if (!handle(fd, link, kind, text)) return drop(fd);
  }
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
bool WatchTree::handle(int fd, Link& link, char kind, const std::string& text) {
  if (link.rank < 0) {
    const std::string world = "/" + std::to_string(options_.world_size);
    for (const int child : children_) {
      if (kind == kHello && text == std::to_string(child) + world) link.rank = child;
    }
    if (link.rank >= 0 && cause_) put(link, kCause, *cause_);
    return link.rank >= 0;
  }
  if (kind == kCause && !cause_) {
    spread(text, fd);
    heard_ = text;
  } else if (kind == kDone) {
    link.done = true;
  } else if (kind == kOver) {
    over_ = true;
    for (auto& [other, child] : links_) {
      if (other != fd && child.rank >= 0) put(child, kOver, "");
    }
  }
  return true;
}

}  // namespace metroplex::comm

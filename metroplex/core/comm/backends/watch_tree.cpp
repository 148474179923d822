#include "comm/backends/watch_tree.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
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

constexpr char kBeat = 'b', kCause = 'c', kDone = 'd', kAllLeaving = 'o';

std::string address_key(int rank) { return "watch/" + std::to_string(rank); }

double seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

// Returns the text that an end of a connection proves; `end` differs per end.
std::string claim(const char* end, const std::string& parent_nonce, const std::string& child_claim) {
  return base::concat(end, " ", parent_nonce, " ", child_claim);
}

// True if the peer's kernel has acknowledged all sent bytes: its machine and the network are up.
bool acknowledges(int fd) {
  int waiting_bytes = 0;  // unsent or unacknowledged
  return ::ioctl(fd, SIOCOUTQ, &waiting_bytes) == 0 && waiting_bytes == 0;
}

// True if the errno of a read indicates that the process ended, not the connection to its machine.
bool is_closed_by_peer(int error) { return error == 0 || error == ECONNRESET || error == EPIPE; }

}  // namespace

WatchTree::WatchTree(WatchOptions options)
    : options_(std::move(options)), children_(tree_children(options_.rank, options_.world_size)) {
  if (options_.world_size == 1) return;
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  MPX_CHECK(wake_fd_ >= 0, "comm", "cannot create an eventfd: ", std::strerror(errno));
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
  port_.close();
  if (wake_fd_ >= 0) ::close(wake_fd_);
  wake_fd_ = -1;
}

void WatchTree::listen() {
  const auto [fd, port] = listen_at(options_.address);
  port_ = LinkPort(OwnedFd(fd));
  options_.publish(address_key(options_.rank), base::concat(options_.address, " ", port, " ", options_.host));
}

void WatchTree::join_parent() {
  const int parent = tree_parent(options_.rank);
  const auto deadline = Clock::now() + parent_limit();
  std::optional<std::string> record;
  for (auto pause = std::chrono::milliseconds(2); !(record = options_.look_up(address_key(parent)));
       pause = std::min(2 * pause, std::chrono::milliseconds(1000))) {
    if (const auto cause = options_.look_up(kCauseKey)) throw PeerFailure(*cause);
    if (Clock::now() >= deadline) throw PeerFailure(format_unconnected(parent));
    std::this_thread::sleep_for(pause);
  }
  std::istringstream fields(*record);
  std::string address, host, error;
  uint16_t port = 0;
  fields >> address >> port >> host;
  const int fd = connect_to(address, port, kSilence, error);
  if (fd < 0) {
    if (const auto cause = options_.look_up(kCauseKey)) throw PeerFailure(*cause);
    throw PeerFailure(options_.rank_name(parent) + " died, or cannot be reached at " + address + " (" + error +
                      "); on a machine with several networks, choose one with run.network_interface");
  }
  prepare_socket(fd, kSilence);
  {
    const std::lock_guard lock(mutex_);
    WatchLink& link = links_[fd];
    link.rank = parent;
    link.host = host;
    link.address = address;
    link.nonce = random_secret();
  }
  wake();
  wait_until_proven(fd, parent);
}

void WatchTree::wait_until_proven(int fd, int parent) {
  std::unique_lock lock(mutex_);
  const auto open = [&] { return links_.find(fd) != links_.end(); };
  changed_.wait_for(lock, parent_limit(), [&] { return !open() || links_.at(fd).proven || cause_; });
  if (cause_ || (open() && links_.at(fd).proven)) return;
  const bool closed = !open();
  lock.unlock();
  if (const auto cause = options_.look_up(kCauseKey)) throw PeerFailure(*cause);
  if (!closed) throw PeerFailure(format_unconnected(parent));
  throw PeerFailure(options_.rank_name(parent) +
                    " closed the connection at the start; it ended, or METROPLEX_SECRET differs between ranks");
}

std::chrono::milliseconds WatchTree::parent_limit() const {
  return std::min(options_.timeout, options_.connect_limit.value_or(options_.timeout));
}

std::string WatchTree::format_unconnected(int rank) const {
  return base::concat(options_.rank_name(rank), " has not connected for ", seconds(parent_limit()),
                      " s: its process is not running (not started, or stopped by a signal or a debugger), or the "
                      "network to it is down");
}

void WatchTree::wake() {
  const uint64_t one = 1;
  if (wake_fd_ >= 0) [[maybe_unused]]
    const ssize_t written = ::write(wake_fd_, &one, sizeof one);
}

bool WatchTree::flushed() const {
  return std::all_of(links_.begin(), links_.end(), [](const auto& entry) { return entry.second.out.empty(); });
}

void WatchTree::send_cause(const std::string& cause) {
  std::unique_lock lock(mutex_);
  if (options_.world_size == 1 || cause_) return;
  forward_cause(cause, -1);
  wake();
  changed_.wait_for(lock, std::chrono::milliseconds(300), [&] { return flushed(); });
}

void WatchTree::leave() {
  std::unique_lock lock(mutex_);
  if (options_.world_size == 1) return;
  leaving_ = true;
  wake();
  changed_.wait_for(lock, options_.timeout, [&] { return cause_ || (all_leaving_ && flushed()); });
}

// Requires the lock. Stores the cause and sends it to all other links.
void WatchTree::forward_cause(const std::string& cause, int except_fd) {
  cause_ = cause;
  for (auto& [fd, link] : links_) {
    if (fd != except_fd && link.proven) link.put(kCause, cause);
  }
}

// Requires the lock. Reports to the parent when this subtree is leaving, and to the children when all ranks are.
void WatchTree::update_leaving() {
  if (!leaving_ || reported_done_ || cause_) return;
  const auto done = std::count_if(links_.begin(), links_.end(), [](const auto& entry) { return entry.second.done; });
  if (done < static_cast<std::ptrdiff_t>(children_.size())) return;
  reported_done_ = true;
  all_leaving_ = options_.rank == 0;
  for (auto& [fd, link] : links_) {
    if (!link.proven) continue;
    if (all_leaving_) link.put(kAllLeaving, "");
    else if (link.rank == tree_parent(options_.rank)) link.put(kDone, "");
  }
}

void WatchTree::work() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    update_leaving();
    close_unproven();
    std::vector<pollfd> waiting{{wake_fd_, POLLIN, 0}, {port_.pollable(links_), POLLIN, 0}};
    for (auto& [fd, link] : links_) {
      link.flush(fd);
      waiting.push_back({fd, static_cast<short>(link.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    const auto patience = port_.has_limits(links_) ? std::min(LinkPort::kPause, options_.beat) : options_.beat / 2;
    changed_.notify_all();
    lock.unlock();
    if (pending_cause_) {  // after the cause was forwarded
      options_.on_failure(*pending_cause_);
      pending_cause_.reset();
    }
    ::poll(waiting.data(), waiting.size(), static_cast<int>(patience.count()));
    lock.lock();
    uint64_t count = 0;
    if (waiting[0].revents != 0) [[maybe_unused]]
      const ssize_t size = ::read(wake_fd_, &count, sizeof count);
    if (waiting[1].revents != 0) port_.accept(links_);
    for (size_t i = 2; i < waiting.size(); ++i) {
      if ((waiting[i].revents & ~POLLOUT) != 0) read_from(waiting[i].fd);
    }
    const auto now = Clock::now();
    beat(now);
    check_silence(now);
    check_children(now);
  }
}

void WatchTree::beat(Clock::time_point now) {
  if (now - last_beat_ < options_.beat) return;
  last_beat_ = now;
  for (auto& [fd, link] : links_) {
    if (link.proven && link.out.empty()) link.put(kBeat, "");
  }
}

// After a pause of this process (SIGSTOP of the job, a suspended machine) the silence of all links restarts. The
// other ranks may have been stopped too.
void WatchTree::check_silence(Clock::time_point now) {
  const bool stalled = now - last_round_ > options_.beat + options_.silence / 5;
  last_round_ = now;
  if (stalled) started_ = now;
  for (auto& [fd, link] : links_) {
    if (stalled) link.since = now;
    if (!link.proven || all_leaving_ || cause_ || now - link.since < options_.silence) continue;
    report_lost_peer(base::concat(format_peer(link), " has not answered for ", seconds(options_.silence), " s: ",
                                  acknowledges(fd)
                                      ? "its machine answers, but its process is not running (stopped by a "
                                        "signal or a debugger, or without memory or processor time)"
                                      : "its machine or the network to it is down"));
  }
}

void WatchTree::check_children(Clock::time_point now) {
  if (!options_.connect_limit || cause_ || now - started_ < *options_.connect_limit) return;
  for (const int child : children_) {
    if (!joined_.contains(child)) return report_lost_peer(format_unconnected(child));
  }
}

// Requires the lock. Handles the loss of a neighbor.
void WatchTree::report_lost_peer(const std::string& cause) {
  forward_cause(cause, -1);
  pending_cause_ = cause;
}

// Returns "rank 3 (tp 1) on node7 (10.0.0.7)"; without the machine on the loopback.
std::string WatchTree::format_peer(const WatchLink& link) const {
  const std::string name = options_.rank_name(link.rank);
  return is_loopback(link.address) ? name : base::concat(name, " on ", link.host, " (", link.address, ")");
}

// Closes expired unproven connections. Closes all of them and the port once every child has joined.
void WatchTree::close_unproven() {
  const bool all_joined = joined_.size() == children_.size();
  for (const int fd : port_.expired(links_, all_joined)) drop(fd);
  if (all_joined) port_.close();
}

void WatchTree::read_from(int fd) {
  const auto found = links_.find(fd);
  if (found == links_.end()) return;
  WatchLink& link = found->second;
  char buffer[4096];
  ssize_t size = 0;
  while ((size = ::recv(fd, buffer, std::min(sizeof buffer, link.free_bytes()), 0)) > 0) {
    link.in.append(buffer, static_cast<size_t>(size));
    if (link.proven) link.since = Clock::now();
    bool refused = false;
    while (const auto message = link.take(refused)) {
      if (!handle(fd, link, *message)) return drop(fd);
    }
    if (refused) return drop(fd);
  }
  const int error = size == 0 ? 0 : errno;
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) return;
  const std::string name = link.proven ? format_peer(link) : "";
  drop(fd);
  if (name.empty() || all_leaving_ || cause_) return;
  report_lost_peer(is_closed_by_peer(error)
                       ? name + " died or closed its connection"
                       : base::concat(name, " has not answered for ", kSilence.count(), " s (", std::strerror(error),
                                      "): its machine or the network to it is down"));
}

void WatchTree::drop(int fd) {
  links_.erase(fd);
  ::close(fd);
  changed_.notify_all();
}

// Parses "5/16 node7 NONCE PROOF" from a child that has not joined yet.
bool WatchTree::admit_child(WatchLink& link, const WatchMessage& message) {
  std::istringstream fields(message.text);
  std::string record, host, nonce, proof;
  fields >> record >> host >> nonce >> proof;
  const std::string claimed = base::concat(record, " ", host, " ", nonce);
  if (message.kind != kHello || !equal_secrets(proof, prove(options_.secret, claim("child", link.nonce, claimed))))
    return false;
  for (const int child : children_) {
    if (record != base::concat(child, "/", options_.world_size) || joined_.contains(child)) continue;
    link.rank = child;
    link.host = host;
    link.proven = true;
    link.since = Clock::now();
    joined_.insert(child);
    link.put(kWelcome, prove(options_.secret, claim("parent", link.nonce, claimed)));
    if (cause_) link.put(kCause, *cause_);
    return true;
  }
  return false;
}

bool WatchTree::admit_parent(WatchLink& link, const WatchMessage& message) {
  const std::string claimed =
      base::concat(options_.rank, "/", options_.world_size, " ", options_.host, " ", link.nonce);
  if (message.kind == kNonce && link.parent_nonce.empty()) {
    link.parent_nonce = message.text;
    link.put(kHello, claimed + " " + prove(options_.secret, claim("child", link.parent_nonce, claimed)));
    return true;
  }
  if (message.kind != kWelcome ||
      !equal_secrets(message.text, prove(options_.secret, claim("parent", link.parent_nonce, claimed))))
    return false;
  link.proven = true;
  link.since = Clock::now();
  if (cause_) link.put(kCause, *cause_);  // from a child that joined and left
  changed_.notify_all();
  return true;
}

// Returns false if the other end is not a rank of this run.
bool WatchTree::handle(int fd, WatchLink& link, const WatchMessage& message) {
  if (!link.proven) return link.rank < 0 ? admit_child(link, message) : admit_parent(link, message);
  if (message.kind == kCause && !cause_) {
    forward_cause(message.text, fd);
    pending_cause_ = message.text;
  } else if (message.kind == kDone) {
    link.done = true;
  } else if (message.kind == kAllLeaving) {
    all_leaving_ = true;
    for (auto& [other, child] : links_) {
      if (other != fd && child.proven) child.put(kAllLeaving, "");
    }
  }
  return true;
}

}  // namespace metroplex::comm

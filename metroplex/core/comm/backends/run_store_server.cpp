#include "comm/backends/run_store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/error.h"
#include "comm/backends/run_store_messages.h"

namespace metroplex::comm {

StoreServer::StoreServer(OwnedFd listening, std::string secret, const StoreLimits& limits)
    : secret_(std::move(secret)),
      limits_(limits),
      listening_fd_(listening.get()),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      port_(std::move(listening)) {
  MPX_CHECK(wake_fd_.get() >= 0, "comm", "cannot create an eventfd: ", std::strerror(errno));
  thread_ = std::thread([this] { work(); });
}

StoreServer::~StoreServer() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake();
  thread_.join();
  for (const auto& [fd, link] : links_) ::close(fd);
}

void StoreServer::close_port() {
  {
    const std::lock_guard lock(mutex_);
    if (!port_closes_) refuse_connections(listening_fd_);  // takes effect at once; the thread closes the socket later
    port_closes_ = true;
  }
  wake();
}

void StoreServer::wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_.get(), &one, sizeof one);
}

void StoreServer::work() {
  while (true) {
    bool port_closes = false;
    {
      const std::lock_guard lock(mutex_);
      if (closing_) return;
      port_closes = port_closes_;
    }
    if (port_closes) close_connections(true);
    std::vector<pollfd> waiting{{wake_fd_.get(), POLLIN, 0}, {port_.pollable(links_), POLLIN, 0}};
    for (const auto& [fd, link] : links_)
      waiting.push_back({fd, static_cast<short>(link.out.empty() ? POLLIN : POLLOUT), 0});
    const auto patience = port_.has_limits(links_) ? static_cast<int>(LinkPort::kPause.count()) : -1;
    ::poll(waiting.data(), waiting.size(), busy_ ? 0 : patience);
    uint64_t count = 0;
    if (waiting[0].revents != 0) [[maybe_unused]]
      const ssize_t size = ::read(wake_fd_.get(), &count, sizeof count);
    busy_ = false;
    for (size_t i = 2; i < waiting.size(); ++i) {
      if (!serve(waiting[i].fd, links_.at(waiting[i].fd), (waiting[i].revents & ~POLLOUT) != 0)) drop(waiting[i].fd);
    }
    if (waiting[1].revents != 0) accept();
    close_connections(false);  // after the reads, because hellos queue while this process is stopped
  }
}

void StoreServer::drop(int fd) {
  links_.erase(fd);
  ::close(fd);
}

// Closes expired connections; with `port_closes` also all connections whose clients do not stay.
void StoreServer::close_connections(bool port_closes) {
  std::vector<int> fds = port_.expired(links_, port_closes);
  for (const auto& [fd, link] : links_) {
    if (port_closes && link.proven && !link.stays) fds.push_back(fd);
  }
  for (const int fd : fds) drop(fd);
  if (port_closes) port_.close();
}

void StoreServer::accept() {
  port_.accept(links_);
  const std::lock_guard lock(mutex_);
  lacked_files_ = lacked_files_ || port_.lacks_files();
}

// Handles at most one read and one message per call, and none before the last answer has been sent. No client can
// therefore block the thread or fill its memory. Returns false if the connection must be closed.
bool StoreServer::serve(int fd, WatchLink& link, bool readable) {
  link.flush(fd);
  if (!link.out.empty()) return true;
  if (readable && link.free_bytes() > 0) {
    char buffer[65536];
    const ssize_t size = ::recv(fd, buffer, std::min(sizeof buffer, link.free_bytes()), 0);
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return false;
    if (size > 0) link.in.append(buffer, static_cast<size_t>(size));
  }
  bool refused = false;
  const auto message = link.take(refused);
  const bool accepted = !refused && (!message || handle(link, *message));
  link.flush(fd);
  busy_ = busy_ || (message && !link.in.empty());
  return accepted;
}

// Returns false if the connection must be closed.
bool StoreServer::handle(WatchLink& link, const WatchMessage& message) {
  if (!link.proven) return admit(link, message);
  if (message.kind == kStay && !mark_staying(link)) return false;
  const auto fields = message.kind == kStay ? std::vector<std::string>{} : answer(message);
  if (fields) link.put(message.kind, pack(*fields));
  return fields.has_value();
}

bool StoreServer::admit(WatchLink& link, const WatchMessage& message) {
  const size_t space = message.text.find(' ');
  if (message.kind != kHello || space == std::string::npos) return false;
  const std::string nonce = message.text.substr(0, space), proof = message.text.substr(space + 1);
  if (!equal_secrets(proof, prove(secret_, store_claim("client", link.nonce, nonce)))) return refuse(link, "");
  const auto proven =
      std::count_if(links_.begin(), links_.end(), [](const auto& entry) { return entry.second.proven; });
  if (static_cast<size_t>(proven) >= limits_.members + kSpareClients)
    return refuse(link, base::concat("it has ", proven, " clients, for ", limits_.members,
                                     " ranks; another program holds connections to it, or more processes than "
                                     "ranks were started"));
  link.rank = 0;
  link.proven = true;
  link.max_message = limits_.message;
  link.put(kWelcome, prove(secret_, store_claim("server", link.nonce, nonce)));
  return true;
}

bool StoreServer::refuse(WatchLink& link, const std::string& cause) {
  link.put(kRefusal, cause);
  const std::lock_guard lock(mutex_);
  ++(cause.empty() ? num_other_secrets_ : num_too_many_);
  if (cause.empty()) other_secret_address_ = link.address;
  return false;
}

bool StoreServer::mark_staying(WatchLink& link) {
  const auto num_staying =
      std::count_if(links_.begin(), links_.end(), [](const auto& entry) { return entry.second.stays; });
  if (static_cast<size_t>(num_staying) < limits_.members) link.stays = true;
  return link.stays;
}

std::string StoreServer::problems() {
  const std::lock_guard lock(mutex_);
  std::string text;
  if (num_other_secrets_ > 0)
    text +=
        base::concat("; rank 0 refused ", num_other_secrets_, " connections (the last from ", other_secret_address_,
                     ") because their METROPLEX_SECRET differs from its own; set one value on all ranks");
  if (num_too_many_ > 0)
    text += base::concat("; rank 0 refused ", num_too_many_, " connections because its store had more than ",
                         limits_.members, " clients; keep other programs away from its port");
  if (lacked_files_) text += "; rank 0 had no free file descriptor for a connection; raise RLIMIT_NOFILE (ulimit -n)";
  return text;
}

bool StoreServer::store(const std::string& key, const std::string& value) {
  const auto found = values_.find(key);
  const size_t after = kKeyBytes + key.size() + value.size();
  const size_t before = found == values_.end() ? 0 : kKeyBytes + key.size() + found->second.size();
  if (bytes_ - before + after > limits_.bytes) return false;
  bytes_ += after - before;
  values_[key] = value;
  return true;
}

static std::optional<int64_t> parse_integer(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::optional<std::vector<std::string>> StoreServer::answer(const WatchMessage& request) {
  using Fields = std::vector<std::string>;
  const auto unpacked = unpack(request.text);
  if (!unpacked) return std::nullopt;
  const Fields& in = *unpacked;
  const auto is = [&](char kind, size_t fields) { return request.kind == kind && in.size() == fields; };
  const auto found = in.empty() ? values_.end() : values_.find(in[0]);
  if (is(kSet, 2)) return store(in[0], in[1]) ? std::optional(Fields{}) : std::nullopt;
  if (is(kGet, 1)) return found == values_.end() ? Fields{} : Fields{found->second};
  if (is(kCompare, 3)) {  // like c10d's stores: an absent key is set only if `expected` is empty
    const bool absent = found == values_.end();
    if (absent ? !in[1].empty() : found->second != in[1]) return Fields{absent ? in[1] : found->second};
    return store(in[0], in[2]) ? std::optional(Fields{in[2]}) : std::nullopt;
  }
  if (is(kAdd, 2)) {
    const auto amount = parse_integer(in[1]), before = found == values_.end() ? 0 : parse_integer(found->second);
    int64_t sum = 0;
    if (!amount || !before || __builtin_add_overflow(*amount, *before, &sum)) return std::nullopt;
    return store(in[0], std::to_string(sum)) ? std::optional(Fields{std::to_string(sum)}) : std::nullopt;
  }
  if (is(kDelete, 1)) {
    if (found == values_.end()) return Fields{"0"};
    bytes_ -= kKeyBytes + found->first.size() + found->second.size();
    values_.erase(found);
    return Fields{"1"};
  }
  if (request.kind == kCheck) {
    for (const std::string& key : in) {
      if (!values_.contains(key)) return Fields{"0"};
    }
    return Fields{"1"};
  }
  if (is(kCount, 0)) return Fields{std::to_string(values_.size())};
  return std::nullopt;
}

}  // namespace metroplex::comm

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/error.h"
#include "comm/backends/run_store.h"
#include "comm/backends/store_messages.h"

namespace metroplex::comm {

StoreServer::StoreServer(OwnedFd listening, std::string secret, size_t most_bytes)
    : secret_(std::move(secret)),
      most_bytes_(most_bytes),
      listening_fd_(listening.get()),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      port_(std::move(listening)) {
  MPX_CHECK(wake_fd_.get() >= 0, "comm", "no eventfd: ", std::strerror(errno));
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
    for (const int fd : port_.expired(links_, port_closes)) {
      links_.erase(fd);
      ::close(fd);
    }
    if (port_closes) port_.close();
    std::vector<pollfd> waiting{{wake_fd_.get(), POLLIN, 0}, {port_.pollable(links_), POLLIN, 0}};
    for (const auto& [fd, link] : links_)
      waiting.push_back({fd, static_cast<short>(link.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    ::poll(waiting.data(), waiting.size(),
           port_.has_limits(links_) ? static_cast<int>(LinkPort::kPause.count()) : -1);
    uint64_t count = 0;
    if (waiting[0].revents != 0) [[maybe_unused]]
      const ssize_t size = ::read(wake_fd_.get(), &count, sizeof count);
    if (waiting[1].revents != 0) port_.accept(links_);
    for (size_t i = 2; i < waiting.size(); ++i) {
      if ((waiting[i].revents & ~POLLOUT) != 0) read_from(waiting[i].fd);
    }
    for (auto& [fd, link] : links_) link.flush(fd);
  }
}

void StoreServer::read_from(int fd) {
  WatchLink& link = links_.at(fd);
  char buffer[65536];
  bool accepted = true, refused = false;
  ssize_t size = 0;
  while (accepted && (size = ::recv(fd, buffer, std::min(sizeof buffer, link.room()), 0)) > 0) {
    link.in.append(buffer, static_cast<size_t>(size));
    while (accepted) {
      const auto message = link.take(refused);
      if (!message) break;
      accepted = handle(link, *message);
    }
    accepted = accepted && !refused;
  }
  const bool open = size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  if (accepted && open) return;
  links_.erase(fd);
  ::close(fd);
}

// Returns false if the connection must be closed.
bool StoreServer::handle(WatchLink& link, const WatchMessage& message) {
  if (!link.proven) return admit(link, message);
  const auto fields = answer(message);
  if (fields) link.put(message.kind, pack(*fields));
  return fields.has_value();
}

bool StoreServer::admit(WatchLink& link, const WatchMessage& message) const {
  const size_t space = message.text.find(' ');
  if (message.kind != kHello || space == std::string::npos) return false;
  const std::string nonce = message.text.substr(0, space), proof = message.text.substr(space + 1);
  if (!equal_secrets(proof, prove(secret_, store_claim("client", link.nonce, nonce)))) return false;
  link.rank = 0;
  link.proven = true;
  link.longest = kLongestStoreMessage;
  link.put(kWelcome, prove(secret_, store_claim("server", link.nonce, nonce)));
  return true;
}

bool StoreServer::store(const std::string& key, const std::string& value) {
  const auto found = values_.find(key);
  const size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
  if (bytes_ - before + key.size() + value.size() > most_bytes_) return false;
  bytes_ += key.size() + value.size() - before;
  values_[key] = value;
  return true;
}

static std::optional<int64_t> whole_number(const std::string& text) {
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
    const auto amount = whole_number(in[1]), before = found == values_.end() ? 0 : whole_number(found->second);
    int64_t sum = 0;
    if (!amount || !before || __builtin_add_overflow(*amount, *before, &sum)) return std::nullopt;
    return store(in[0], std::to_string(sum)) ? std::optional(Fields{std::to_string(sum)}) : std::nullopt;
  }
  if (is(kDelete, 1)) {
    if (found == values_.end()) return Fields{"0"};
    bytes_ -= found->first.size() + found->second.size();
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

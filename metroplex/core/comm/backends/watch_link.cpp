#include "comm/backends/watch_link.h"

#include <c10/util/hash.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "comm/network.h"

namespace metroplex::comm {

namespace {

using Clock = std::chrono::steady_clock;

// Limits of unproven connections: number, duration, and duration once the number is reached.
constexpr std::ptrdiff_t kMaxUnproven = 256;
constexpr std::chrono::milliseconds kHelloTime{5000}, kCrowdedHelloTime{1000};

std::ptrdiff_t num_unproven(const WatchLinks& links) {
  return std::count_if(links.begin(), links.end(), [](const auto& entry) { return entry.second.rank < 0; });
}

}  // namespace

void WatchLink::put(char kind, const std::string& text) {
  const auto size = static_cast<uint32_t>(std::min(text.size(), max_message));
  out += kind;
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(size >> shift & 0xff);
  out += text.substr(0, size);
}

size_t WatchLink::free_bytes() const {
  const size_t limit = kHead + (proven ? max_message : kMaxHello);
  return limit - std::min(limit, in.size());
}

std::optional<WatchMessage> WatchLink::take(bool& refused) {
  if (in.size() < kHead) return std::nullopt;
  uint32_t length = 0;
  for (size_t byte = 0; byte < 4; ++byte)
    length |= static_cast<uint32_t>(static_cast<unsigned char>(in[1 + byte])) << 8 * byte;
  refused = length > (proven ? max_message : kMaxHello);
  if (refused || in.size() < kHead + length) return std::nullopt;
  WatchMessage message{in[0], in.substr(kHead, length)};
  in.erase(0, kHead + length);
  return message;
}

void WatchLink::flush(int fd) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t sent = ::send(fd, out.data() + done, out.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    done = sent < 0 ? out.size() : done + static_cast<size_t>(sent);  // the next read reports the loss
  }
  out.erase(0, done);
}

LinkPort::LinkPort(OwnedFd fd) : fd_(std::move(fd)) {
  ::fcntl(fd_.get(), F_SETFL, ::fcntl(fd_.get(), F_GETFL) | O_NONBLOCK);
}

// Another process may also hold the socket, so the port is blocked in the kernel first.
void LinkPort::close() {
  if (fd_.get() >= 0) refuse_connections(fd_.get());
  fd_ = OwnedFd();
}

int LinkPort::pollable(const WatchLinks& links) const {
  const bool accepts = num_unproven(links) < kMaxUnproven && (!out_of_files_ || Clock::now() >= *out_of_files_);
  return accepts ? fd_.get() : -1;
}

void LinkPort::accept(WatchLinks& links) {
  const int fd = ::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    const bool passing = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED;
    if (!passing) out_of_files_ = Clock::now() + kPause;  // the queued connection would wake the owner at once
    return;
  }
  prepare_socket(fd, kSilence);
  WatchLink& link = links[fd] = {};
  link.address = peer_address(fd);
  link.nonce = random_secret();
  link.put(kNonce, link.nonce);
}

std::vector<int> LinkPort::expired(const WatchLinks& links, bool all) {
  const bool is_crowded = num_unproven(links) >= kMaxUnproven || out_of_files_;
  const auto time = is_crowded ? kCrowdedHelloTime : kHelloTime;
  const auto now = Clock::now();
  std::vector<int> fds;
  for (const auto& [fd, link] : links) {
    if (link.rank < 0 && (all || now - link.since > time)) fds.push_back(fd);
  }
  if (out_of_files_ && now >= *out_of_files_) out_of_files_.reset();
  return fds;
}

bool LinkPort::has_limits(const WatchLinks& links) const { return num_unproven(links) > 0 || out_of_files_; }

std::string random_secret() {
  std::array<unsigned char, 16> bytes{};
  MPX_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "comm",
            "the kernel returned no random numbers: ", std::strerror(errno));
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

static std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

// HMAC-SHA1 (RFC 2104).
std::string prove(const std::string& secret, const std::string& text) {
  constexpr size_t kBlock = 64;
  std::string key = secret.size() > kBlock ? from_hex(c10::sha1(secret).str()) : secret;
  key.resize(kBlock, '\0');
  std::string inner = key, outer = key;
  for (char& byte : inner) byte = static_cast<char>(byte ^ 0x36);
  for (char& byte : outer) byte = static_cast<char>(byte ^ 0x5c);
  return c10::sha1(outer + from_hex(c10::sha1(inner + text).str())).str();
}

bool equal_secrets(const std::string& one, const std::string& other) {
  if (one.size() != other.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < one.size(); ++i) difference |= static_cast<unsigned char>(one[i] ^ other[i]);
  return difference == 0;
}

}  // namespace metroplex::comm

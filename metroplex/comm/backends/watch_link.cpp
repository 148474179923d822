#include "comm/backends/watch_tree.h"

#include <c10/util/hash.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace metroplex::comm {

void WatchLink::put(char kind, const std::string& text) {
  const auto size = static_cast<uint32_t>(std::min(text.size(), kLongest));
  out += kind;
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(size >> shift & 0xff);
  out += text.substr(0, size);
}

size_t WatchLink::room() const {
  const size_t most = kHead + (proven ? kLongest : kLongestHello);
  return most - std::min(most, in.size());
}

std::optional<WatchMessage> WatchLink::take(bool& refused) {
  if (in.size() < kHead) return std::nullopt;
  uint32_t length = 0;
  for (size_t byte = 0; byte < 4; ++byte)
    length |= static_cast<uint32_t>(static_cast<unsigned char>(in[1 + byte])) << 8 * byte;
  refused = length > (proven ? kLongest : kLongestHello);
  if (refused || in.size() < kHead + length) return std::nullopt;
  WatchMessage message{in[0], in.substr(kHead, length)};
  in.erase(0, kHead + length);
  return message;
}

std::string random_secret() {
  std::array<unsigned char, 16> bytes{};
  MPX_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "comm",
            "no random numbers from the kernel: ", std::strerror(errno));
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

// The 20 bytes of a hash in hexadecimal digits.
static std::string bytes_of(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

// HMAC-SHA1 (RFC 2104).
std::string prove(const std::string& secret, const std::string& text) {
  constexpr size_t kBlock = 64;
  std::string key = secret.size() > kBlock ? bytes_of(c10::sha1(secret).str()) : secret;
  key.resize(kBlock, '\0');
  std::string inner = key, outer = key;
  for (char& byte : inner) byte = static_cast<char>(byte ^ 0x36);
  for (char& byte : outer) byte = static_cast<char>(byte ^ 0x5c);
  return c10::sha1(outer + bytes_of(c10::sha1(inner + text).str())).str();
}

bool equal_secrets(const std::string& one, const std::string& other) {
  if (one.size() != other.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < one.size(); ++i) difference |= static_cast<unsigned char>(one[i] ^ other[i]);
  return difference == 0;
}

}  // namespace metroplex::comm

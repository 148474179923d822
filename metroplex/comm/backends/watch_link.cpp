#include "comm/backends/watch_tree.h"

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
  const size_t most = kHead + (rank < 0 ? kLongestHello : kLongest);
  return most - std::min(most, in.size());
}

std::optional<WatchMessage> WatchLink::take(bool& refused) {
  if (in.size() < kHead) return std::nullopt;
  uint32_t length = 0;
  for (size_t byte = 0; byte < 4; ++byte)
    length |= static_cast<uint32_t>(static_cast<unsigned char>(in[1 + byte])) << 8 * byte;
  refused = length > (rank < 0 ? kLongestHello : kLongest);
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

bool equal_secrets(const std::string& one, const std::string& other) {
  if (one.size() != other.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < one.size(); ++i) difference |= static_cast<unsigned char>(one[i] ^ other[i]);
  return difference == 0;
}

}  // namespace metroplex::comm

// XXH3-128: one flipped bit anywhere changes it, at memory speed. It guards against disks and cables, not enemies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace metroplex::files {

struct Checksum {
  uint64_t high = 0, low = 0;
  bool operator==(const Checksum&) const = default;
};

Checksum checksum(const void* data, size_t size);

// 32 lower-case hexadecimal digits, the high half first (the canonical form of XXH3).
std::string to_hex(const Checksum& sum);
// Exactly what to_hex writes; returns false for anything else.
bool from_hex(std::string_view text, Checksum& sum);

// The same sum over bytes that come in parts.
class ChecksumStream {
 public:
  ChecksumStream();
  ~ChecksumStream();
  ChecksumStream(ChecksumStream&&) noexcept;
  void add(const void* data, size_t size);
  Checksum sum() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace metroplex::files

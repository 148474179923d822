// XXH3-128 checksums: detect any flipped bit at memory speed. They protect against storage and transfer errors, not
// against attackers.
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

// Returns 32 lower-case hexadecimal digits, high half first (the canonical form of XXH3).
std::string to_hex(const Checksum& sum);
// Accepts only the output format of to_hex; returns false otherwise.
bool from_hex(std::string_view text, Checksum& sum);

// Incremental version of checksum().
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

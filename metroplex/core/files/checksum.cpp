#include "files/checksum.h"

#include <xxhash.h>

#include "base/error.h"

namespace metroplex::files {
namespace {

Checksum convert(const XXH128_hash_t& hash) { return {hash.high64, hash.low64}; }

}  // namespace

struct ChecksumStream::State {
  XXH3_state_t* state = XXH3_createState();
  State() {
    MPX_ASSERT(state != nullptr && XXH3_128bits_reset(state) == XXH_OK, "cannot allocate the state of a checksum");
  }
  ~State() { XXH3_freeState(state); }
};

Checksum checksum(const void* data, size_t size) { return convert(XXH3_128bits(data, size)); }

std::string to_hex(const Checksum& sum) {
  std::string text(32, '0');
  for (int i = 0; i < 16; ++i) {
    text[i] = "0123456789abcdef"[(sum.high >> (60 - 4 * i)) & 15];
    text[16 + i] = "0123456789abcdef"[(sum.low >> (60 - 4 * i)) & 15];
  }
  return text;
}

bool from_hex(std::string_view text, Checksum& sum) {
  if (text.size() != 32) return false;
  uint64_t halves[2] = {0, 0};
  for (int i = 0; i < 32; ++i) {
    const char c = text[i];
    const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
    if (!digit && !letter) return false;
    halves[i / 16] = halves[i / 16] << 4 | static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  sum = {halves[0], halves[1]};
  return true;
}

ChecksumStream::ChecksumStream() : state_(std::make_unique<State>()) {}
ChecksumStream::~ChecksumStream() = default;
ChecksumStream::ChecksumStream(ChecksumStream&&) noexcept = default;

void ChecksumStream::add(const void* data, size_t size) {
  MPX_ASSERT(XXH3_128bits_update(state_->state, data, size) == XXH_OK, "cannot update the checksum");
}

Checksum ChecksumStream::sum() const { return convert(XXH3_128bits_digest(state_->state)); }

}  // namespace metroplex::files

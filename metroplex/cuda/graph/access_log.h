// Accesses to memory beside all operations, as a signal handler writes them down: into room that is there before, so
// that nothing is allocated and no lock taken. Read when the handler is gone.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cuda/graph/tape_findings.h"

namespace metroplex::cuda {

// Words of a handler; what is longer is cut off.
template <size_t Room>
class FixedText {
 public:
  void set(std::string_view text) noexcept {
    size_ = text.size() < Room ? text.size() : Room;
    for (size_t i = 0; i < size_; ++i) text_[i] = text[i];
  }
  std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::array<char, Room> text_;
  size_t size_ = 0;
};

struct Access {
  static constexpr int kFrames = 32;
  FindingKind kind = FindingKind::host_access;
  bool writes = false, given_back = false;
  uintptr_t address = 0;
  FixedText<120> operation, place;
  std::array<void*, kFrames> frames;  // the instruction, and whoever called it
  int depth = 0;
};

class AccessLog {
 public:
  explicit AccessLog(size_t room = 1024) : accesses_(room) {}
  // The next one to fill in, by one at a time; null where there is no room for more: it is counted.
  Access* add() noexcept;

  // With the callers' names, as far as the dynamic linker knows them (of a program's own functions: their offsets in
  // it, for addr2line).
  std::vector<Finding> findings() const;

 private:
  std::vector<Access> accesses_;
  std::atomic<size_t> used_ = 0, left_out_ = 0;
};

}  // namespace metroplex::cuda

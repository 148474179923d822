// A log of memory accesses outside of any operation, written by a signal handler: into preallocated space, without
// allocating or taking a lock. It is read after the handler has been removed.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cuda/graph/tape_findings.h"

namespace metroplex::cuda {

// A string that a signal handler can set; longer text is truncated.
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
  // The next entry to fill in; one caller at a time. Null when the log is full: the access is only counted.
  Access* add() noexcept;

  // With the callers' names, as far as the dynamic linker knows them (of a program's own functions: their offsets in
  // it, for addr2line).
  std::vector<Finding> findings() const;

 private:
  std::vector<Access> accesses_;
  std::atomic<size_t> used_ = 0, left_out_ = 0;
};

}  // namespace metroplex::cuda

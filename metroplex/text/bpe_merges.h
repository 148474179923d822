// The merge rules of byte-pair encoding and the loop that applies them: while any neighbouring pair has a rule, the
// pair of the lowest rank is joined, the leftmost of equals first (Sennrich et al., arXiv:1508.07909).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace metroplex::text {

struct Merge {
  uint32_t rank;
  int32_t id;  // of the joined token
};

class MergeTable {
 public:
  // A pair given twice keeps its last rank.
  void set(int32_t left, int32_t right, Merge merge);
  // Null when the pair has no rule.
  const Merge* find(int32_t left, int32_t right) const {
    if (slots_.empty()) return nullptr;
    const uint64_t key = pair_key(left, right);
    for (size_t i = slot_of(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return &slots_[i].merge;
      if (slots_[i].key == kEmpty) return nullptr;
    }
  }
  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static uint64_t pair_key(int32_t left, int32_t right) {
    return uint64_t(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15ull >> 20) & (slots_.size() - 1); }
  void grow();

  std::vector<Slot> slots_;  // open addressing; a power of two
  size_t size_ = 0;
};

// Working memory of merge_all, kept between words.
struct MergeScratch {
  std::vector<uint32_t> ranks;
  std::vector<int32_t> ids;
  std::vector<int32_t> previous, next;
  std::vector<uint64_t> heap;
};

// Joins until no rule applies; `symbols` shrinks. Short words by scanning, long ones with a heap: O(n log n).
void merge_all(const MergeTable& table, std::vector<int32_t>& symbols, MergeScratch& scratch);

}  // namespace metroplex::text

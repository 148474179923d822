#include "text/bpe_model.h"

#include <algorithm>
#include <functional>

namespace metroplex::text {
namespace {

constexpr size_t kScanLimit = 40;  // symbols; the heap is faster above it
constexpr uint32_t kNoRank = ~uint32_t{0};

void merge_by_scanning(const MergeTable& table, std::vector<int32_t>& symbols, MergeScratch& scratch) {
  auto& ranks = scratch.ranks;  // rank of the pair that begins at i
  auto& joined = scratch.ids;
  size_t count = symbols.size();
  ranks.resize(count);
  joined.resize(count);
  const auto look_up = [&](size_t i) {
    const Merge* merge = i + 1 < count ? table.find(symbols[i], symbols[i + 1]) : nullptr;
    ranks[i] = merge ? merge->rank : kNoRank;
    joined[i] = merge ? merge->id : 0;
  };
  for (size_t i = 0; i < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    symbols[best] = joined[best];
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i] = ranks[i + 1];
      joined[i] = joined[i + 1];
    }
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
  symbols.resize(count);
}

// Heap entries are rank << 32 | position. Entries of pairs that have changed since are discarded when popped.
void merge_by_heap(const MergeTable& table, std::vector<int32_t>& symbols, MergeScratch& scratch) {
  const auto count = static_cast<int32_t>(symbols.size());
  auto &previous = scratch.previous, &next = scratch.next;
  auto& heap = scratch.heap;
  previous.resize(symbols.size());
  next.resize(symbols.size());
  heap.clear();
  const auto push = [&](int32_t i) {
    if (i < 0 || next[i] >= count) return;
    if (const Merge* merge = table.find(symbols[i], symbols[next[i]])) {
      heap.push_back(uint64_t{merge->rank} << 32 | static_cast<uint32_t>(i));
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  };
  for (int32_t i = 0; i < count; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
  }
  for (int32_t i = 0; i < count; ++i) push(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto rank = static_cast<uint32_t>(heap.back() >> 32);
    const auto i = static_cast<int32_t>(heap.back() & 0xFFFFFFFF);
    heap.pop_back();
    if (symbols[i] < 0 || next[i] >= count) continue;
    const Merge* merge = table.find(symbols[i], symbols[next[i]]);
    if (!merge || merge->rank != rank) continue;
    const int32_t removed = next[i];
    symbols[i] = merge->id;
    symbols[removed] = -1;
    next[i] = next[removed];
    if (next[i] < count) previous[next[i]] = i;
    push(i);
    push(previous[i]);
  }
  std::erase(symbols, -1);
}

}  // namespace

void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  if (2 * (size_ + 1) > slots_.size()) grow();
  const uint64_t key = pair_key(left, right);
  size_t i = hash_slot(key);
  while (slots_[i].key != key && slots_[i].key != kEmpty) i = (i + 1) & (slots_.size() - 1);
  if (slots_[i].key == kEmpty) ++size_;
  slots_[i] = {key, merge};
}

void MergeTable::grow() {
  std::vector<Slot> old(std::max<size_t>(64, slots_.size() * 2), Slot{kEmpty, {0, 0}});
  old.swap(slots_);
  size_ = 0;
  for (const Slot& slot : old) {
    if (slot.key != kEmpty) {
      set(static_cast<int32_t>(slot.key >> 32), static_cast<int32_t>(slot.key & 0xFFFFFFFF), slot.merge);
    }
  }
}

void merge_all(const MergeTable& table, std::vector<int32_t>& symbols, MergeScratch& scratch) {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kScanLimit) {
    merge_by_scanning(table, symbols, scratch);
  } else {
    merge_by_heap(table, symbols, scratch);
  }
}

}  // namespace metroplex::text

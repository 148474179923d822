#include "graph/tape_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"

namespace metroplex::graph {
namespace {

size_t machine_memory() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

size_t TapePool::rounded(size_t bytes) const {
  return std::max(alignment_, (bytes + alignment_ - 1) & ~(alignment_ - 1));
}

TapePool::TapePool(size_t capacity, size_t alignment)
    : alignment_(alignment), capacity_(rounded(capacity == 0 ? machine_memory() : capacity)) {
  void* range = mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  MPX_CHECK(range != MAP_FAILED, "cuda graph", "the system gives no ", capacity_,
            " bytes of addresses for a pool; is there a limit on virtual memory (ulimit -v)?");
  base_ = static_cast<char*>(range);
}

TapePool::~TapePool() { munmap(base_, capacity_); }

GraphPool::Bytes TapePool::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void* TapePool::allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const size_t size = rounded(bytes);
  size_t offset = mark_;
  const auto fit = fits_.lower_bound({size, 0});
  if (fit != fits_.end()) {
    const auto [room, at] = *fit;
    fits_.erase(fit);
    free_.erase(at);
    if (room > size) add_free(at + size, room - size);
    offset = at;
  } else {
    // If the last free block ends at the mark, it is extended.
    if (!free_.empty() && free_.rbegin()->first + free_.rbegin()->second == mark_) {
      offset = free_.rbegin()->first;
      fits_.erase({free_.rbegin()->second, offset});
      free_.erase(offset);
    }
    MPX_CHECK(offset + size <= capacity_, "cuda graph", "the pool of ", capacity_, " bytes has no space for ", bytes,
              " more");
    mark_ = offset + size;
    bytes_.reserved = std::max(bytes_.reserved, static_cast<int64_t>(mark_));
  }
  if (used_.empty()) self_ = weak_from_this().lock();
  used_[offset] = {size, bytes, allocations_++};
  bytes_.live += static_cast<int64_t>(bytes);
  bytes_.peak = std::max(bytes_.peak, bytes_.live);
  return base_ + offset;
}

size_t TapePool::release(void* pointer) {
  std::shared_ptr<TapePool> last;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  const auto offset = static_cast<size_t>(static_cast<char*>(pointer) - base_);
  const auto block = used_.find(offset);
  MPX_ASSERT(block != used_.end(), "a freed block is not from this pool");
  const size_t size = block->second.rounded, asked = block->second.asked;
  bytes_.live -= static_cast<int64_t>(asked);
  used_.erase(block);
  add_free(offset, size);
  if (used_.empty()) {
    // An empty pool returns the same addresses as a new one.
    free_.clear();
    fits_.clear();
    mark_ = 0;
    last = std::move(self_);
  }
  return asked;
}

// Adds a free block and merges it with its neighbors.
void TapePool::add_free(size_t offset, size_t size) {
  const auto next = free_.find(offset + size);
  if (next != free_.end()) {
    size += next->second;
    fits_.erase({next->second, next->first});
    free_.erase(next);
  }
  const auto above = free_.lower_bound(offset);
  if (above != free_.begin()) {
    const auto before = std::prev(above);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      fits_.erase({before->second, before->first});
      free_.erase(before);
    }
  }
  free_[offset] = size;
  fits_.insert({size, offset});
}

bool TapePool::holds(const void* pointer) const {
  const auto* at = static_cast<const char*>(pointer);
  return at >= base_ && at < base_ + capacity_;
}

TapePool::Blocks::const_iterator TapePool::block_at(const void* pointer) const {
  if (!holds(pointer)) return used_.end();
  const size_t offset = offset_of(pointer);
  auto block = used_.upper_bound(offset);
  if (block == used_.begin()) return used_.end();
  --block;
  return offset < block->first + block->second.rounded ? block : used_.end();
}

int64_t TapePool::allocation_at(const void* pointer) const {
  const std::optional<Place> place = place_of(pointer);
  return place ? place->number : -1;
}

std::optional<TapePool::Place> TapePool::place_of(const void* pointer) const {
  const std::lock_guard lock(mutex_);
  const auto block = block_at(pointer);
  if (block == used_.end()) return std::nullopt;
  return Place{base_ + block->first, block->second.rounded, block->second.number, block->second.touched};
}

int64_t TapePool::allocations() const {
  const std::lock_guard lock(mutex_);
  return allocations_;
}

void TapePool::mark_written(const void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto block = block_at(pointer);
  if (block != used_.end()) used_[block->first].written = true;
}

void TapePool::mark_touched(const void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto block = block_at(pointer);
  if (block != used_.end()) used_.find(block->first)->second.touched = true;
}

bool TapePool::written(const void* pointer) const {
  const std::lock_guard lock(mutex_);
  const auto block = block_at(pointer);
  return block != used_.end() && block->second.written;
}

}  // namespace metroplex::graph

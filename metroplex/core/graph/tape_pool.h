// The graph pool of the CPU: one address range. Starting from an empty pool, the same sequence of allocations gets
// the same addresses. The system provides memory on first access.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "graph/graph.h"

namespace metroplex::graph {

class TapePool final : public GraphPool, public std::enable_shared_from_this<TapePool> {
 public:
  static constexpr size_t kAlignment = 64;

  // Reserves `capacity` bytes of addresses; by default the machine's memory size. Every allocation starts and ends at
  // a multiple of `alignment`, a power of two.
  explicit TapePool(size_t capacity = 0, size_t alignment = kAlignment);
  ~TapePool() override;
  TapePool(const TapePool&) = delete;
  TapePool& operator=(const TapePool&) = delete;

  Bytes bytes() const override;
  // Best fit; the lowest address among equal fits. Throws base::Error("cuda graph", ...) if the pool is full.
  void* allocate(size_t bytes);
  // May be called by any thread; returns the requested size in bytes. A pool stays alive while any of its memory
  // is held.
  size_t release(void* pointer);
  bool holds(const void* pointer) const;
  // Returns the number, counted from 0, of the allocation that contains `pointer` and has not been freed; -1: none.
  int64_t allocation_at(const void* pointer) const;
  int64_t allocations() const;  // total number of allocations so far
  // Details of the allocation that allocation_at() identifies.
  struct Place {
    void* begin;
    size_t bytes;  // rounded up
    int64_t number;
    bool touched;  // set by mark_touched
  };
  std::optional<Place> place_of(const void* pointer) const;

  void* base() const { return base_; }
  size_t capacity() const { return capacity_; }
  size_t offset_of(const void* pointer) const {
    return static_cast<size_t>(static_cast<const char*>(pointer) - base_);
  }
  // written(): whether an operation of any graph of the pool has written to the allocation.
  void mark_written(const void* pointer);
  bool written(const void* pointer) const;
  // Marks an allocation that an operation was observed to access. Like place_of(), it does not allocate.
  void mark_touched(const void* pointer);

 private:
  struct Block {
    size_t rounded, asked;
    int64_t number;
    bool written = false, touched = false;
  };
  size_t rounded(size_t bytes) const;
  void add_free(size_t offset, size_t size);
  using Blocks = std::map<size_t, Block>;  // by offset
  Blocks::const_iterator block_at(const void* pointer) const;

  char* base_ = nullptr;
  size_t alignment_;
  size_t capacity_ = 0;
  mutable std::mutex mutex_;
  Blocks used_;
  std::map<size_t, size_t> free_;             // offset -> size, below the mark
  std::set<std::pair<size_t, size_t>> fits_;  // (size, offset) of free_
  size_t mark_ = 0;                           // addresses above it are unused since the pool was last empty
  int64_t allocations_ = 0;
  std::shared_ptr<TapePool> self_;  // set while there are allocations
  Bytes bytes_;
};

}  // namespace metroplex::graph

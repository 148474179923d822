// The graph pool of the CPU: one address range, in which the same allocations in the same order get the same
// addresses from the time at which the pool was last empty. The system provides the memory when it is first touched.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "cuda/graph/graph.h"

namespace metroplex::cuda {

class TapePool final : public GraphPool, public std::enable_shared_from_this<TapePool> {
 public:
  static constexpr size_t kAlignment = 64;

  // Room for `capacity` bytes of addresses; by default as much as the machine has memory. Every allocation begins and
  // ends at a multiple of `alignment`, a power of two.
  explicit TapePool(size_t capacity = 0, size_t alignment = kAlignment);
  ~TapePool() override;
  TapePool(const TapePool&) = delete;
  TapePool& operator=(const TapePool&) = delete;

  Bytes bytes() const override;
  // Best fit, the lowest address of several. Throws base::Error("cuda graph", ...) where there is no room.
  void* allocate(size_t bytes);
  // By any thread; how many bytes had been asked for. A pool lives as long as somebody holds memory of it.
  size_t release(void* pointer);
  bool holds(const void* pointer) const;
  // A number for what allocate() gave, counted from 0, and what has not been given back at `pointer`; -1: nothing is.
  int64_t allocation_at(const void* pointer) const;
  int64_t allocations() const;  // that there have been
  // All of what allocation_at() tells the number of.
  struct Place {
    void* begin;
    size_t bytes;  // rounded
    int64_t number;
    bool touched;  // mark_touched
  };
  std::optional<Place> place_of(const void* pointer) const;

  void* base() const { return base_; }
  size_t capacity() const { return capacity_; }
  size_t offset_of(const void* pointer) const {
    return static_cast<size_t>(static_cast<const char*>(pointer) - base_);
  }
  // Whether an operation has written to what allocate() gave; whichever graph of the pool it is on.
  void mark_written(const void* pointer);
  bool written(const void* pointer) const;
  // By an operation that was seen to load or store there. Like place_of() it allocates nothing.
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
  size_t mark_ = 0;                           // above it nothing has been used since the pool was empty
  int64_t allocations_ = 0;
  std::shared_ptr<TapePool> self_;  // while something is used
  Bytes bytes_;
};

}  // namespace metroplex::cuda

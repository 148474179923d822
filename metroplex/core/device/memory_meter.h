// Bytes of tensors that one thread has allocated and not yet freed, current and peak, in host memory or on GPUs. The
// numbers come from the CPU allocator and the CUDA caching allocator (the latter in blocks of 512 bytes, without
// cached blocks). A rank is a thread, so this is per-rank memory even if ranks share a process. Blocks allocated
// before the meter are not counted, and blocks freed by another thread remain counted. Tests must therefore free
// measured tensors in the thread that allocated them.
#pragma once

#include <cstdint>
#include <memory>

namespace metroplex::device {

class MemoryMeter {
 public:
  enum class Of { host, gpu };
  // Counts for the calling thread (and autograd work on its behalf) until destroyed there. Meters may nest.
  explicit MemoryMeter(Of memory = Of::host);
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  int64_t bytes() const;
  int64_t peak_bytes() const;
  void reset_peak();  // sets the peak to the current bytes

 private:
  struct Counter;
  struct Guard;
  std::shared_ptr<Counter> counter_;
  std::unique_ptr<Guard> guard_;
};

// Memory that no rank owns, such as a message on its way. Until destroyed, no meter of the calling thread counts what
// the thread allocates and frees.
class UnmeteredMemory {
 public:
  UnmeteredMemory();
  ~UnmeteredMemory();
  UnmeteredMemory(const UnmeteredMemory&) = delete;
  UnmeteredMemory& operator=(const UnmeteredMemory&) = delete;

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

// Bytes of tensors on the meta device: the allocations and frees of a real device for the calling thread, with exact
// sizes and in the same order. No memory is allocated.

class MetaMemory {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    // `bytes` is never 0. `block` identifies the allocation: it is never null and never reused. It is the context of
    // the storage's DataPtr.
    virtual void allocated(int64_t bytes, const void* block) = 0;
    // Also called for blocks that are older than this listener. Blocks older than the process's first MetaMemory are
    // not reported.
    virtual void freed(int64_t bytes, const void* block) = 0;
  };

  // Reports for the calling thread (and autograd work on its behalf) until destroyed there. It may nest with other
  // listeners and with MemoryMeter. A free in another thread is reported to that thread's listener.
  explicit MetaMemory(Listener& listener);
  ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

}  // namespace metroplex::device

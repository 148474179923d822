// Bytes of tensors that one thread has allocated and not yet freed, now and at peak, in host memory or on GPUs: what
// the CPU allocator and the CUDA caching allocator report (there in blocks of 512 bytes, without what the cache
// holds). A rank is a thread, so this is memory by rank even where ranks share a process. Blocks from before the
// meter are not counted, and blocks that another thread frees stay counted: a test of ranks keeps what it measures to
// its own thread.
#pragma once

#include <cstdint>
#include <memory>

namespace metroplex::cuda {

class MemoryMeter {
 public:
  enum class Of { host, gpu };
  // Counts for the calling thread (and what autograd runs for it) until destroyed there; meters nest, in order.
  explicit MemoryMeter(Of memory = Of::host);
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  int64_t bytes() const;
  int64_t peak_bytes() const;
  void reset_peak();  // to what is there now

 private:
  struct Counter;
  struct Guard;
  std::shared_ptr<Counter> counter_;
  std::unique_ptr<Guard> guard_;
};

// Bytes of tensors on the meta device: what a real device would allocate and free for the calling thread, exactly as
// the sizes say, in the order in which it would. Nothing is allocated.

class MetaMemory {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    // Never 0 bytes. `block` identifies the allocation: it is never null and never used again. It is the context of
    // the storage's DataPtr.
    virtual void allocated(int64_t bytes, const void* block) = 0;
    // Blocks from before the listener came count as well; one from before the first MetaMemory of the process does
    // not.
    virtual void freed(int64_t bytes, const void* block) = 0;
  };

  // Tells of the calling thread (and of what autograd runs for it) until destroyed there; it nests with others and
  // with MemoryMeter, in order. What another thread frees is told to the listener of that one.
  explicit MetaMemory(Listener& listener);
  ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

}  // namespace metroplex::cuda

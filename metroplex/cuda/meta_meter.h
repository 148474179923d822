// Bytes of tensors on the meta device: what a real device would allocate and free for the calling thread, exactly as
// the sizes say, in the order in which it would. Nothing is allocated.
#pragma once

#include <cstdint>
#include <memory>

namespace metroplex::cuda {

class MetaMemory {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    // Never 0 bytes.
    virtual void allocated(int64_t bytes) = 0;
    // Blocks from before the listener came count as well; one from before the first MetaMemory of the process does
    // not.
    virtual void freed(int64_t bytes) = 0;
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

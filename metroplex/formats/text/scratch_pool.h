// A pool of buffers for const functions of a shared object. A thread leases one Scratch and returns it afterwards.
// Buffers and caches are reused, and no lock is held during their use.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace metroplex::text {

template <class Scratch>
class ScratchPool {
 public:
  class Lease {
   public:
    // `text_bytes`: size of the text. A Scratch is freed after a text larger than kMaxPooledBytes.
    Lease(ScratchPool& pool, size_t text_bytes)
        : pool_(pool), is_pooled_(text_bytes <= kMaxPooledBytes), scratch_(pool.take()) {}
    ~Lease() {
      if (is_pooled_) pool_.give_back(std::move(scratch_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Scratch& operator*() { return *scratch_; }
    Scratch* operator->() { return scratch_.get(); }

   private:
    static constexpr size_t kMaxPooledBytes = size_t{4} << 20;
    ScratchPool& pool_;
    bool is_pooled_;
    std::unique_ptr<Scratch> scratch_;
  };

 private:
  std::unique_ptr<Scratch> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto scratch = std::move(idle_.back());
        idle_.pop_back();
        return scratch;
      }
    }
    return std::make_unique<Scratch>();
  }
  void give_back(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(scratch));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace metroplex::text

// Working memory that const functions of a shared object write to: a thread takes one, uses it alone and gives it
// back, so that buffers and caches live on without a lock held while they are used.
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
    explicit Lease(ScratchPool& pool) : pool_(pool), scratch_(pool.take()) {}
    ~Lease() { pool_.give_back(std::move(scratch_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Scratch& operator*() { return *scratch_; }
    Scratch* operator->() { return scratch_.get(); }

   private:
    ScratchPool& pool_;
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

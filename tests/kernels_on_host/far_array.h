// An array of zeros beyond 2^31 elements; only accessed pages take memory.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "kernels_on_host/machine/watch.h"

namespace metroplex::kernels_on_host {

template <class T>
class FarArray {
 public:
  FarArray(int64_t count, std::string name) : bytes_(static_cast<size_t>(count) * sizeof(T)) {
    // Inaccessible memory precedes it, so that a wrapped index cannot hit another array.
    start_ = mmap(nullptr, bytes_ + kBefore, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start_ == MAP_FAILED || mprotect(data(), bytes_, PROT_READ | PROT_WRITE) != 0) abort();
    watch_memory({data(), bytes_, sizeof(T), true, true, std::move(name)});
  }
  ~FarArray() {
    forget_memory(data());
    munmap(start_, bytes_ + kBefore);
  }
  FarArray(const FarArray&) = delete;
  FarArray& operator=(const FarArray&) = delete;

  T* data() const { return reinterpret_cast<T*>(static_cast<char*>(start_) + kBefore); }

 private:
  static constexpr size_t kBefore = size_t{1} << 34;

  void* start_;
  size_t bytes_;
};

}  // namespace metroplex::kernels_on_host

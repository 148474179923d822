// Memory of the emulated device, of exactly its size: the watch and AddressSanitizer detect one element too far.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/half.h"
#include "kernels_on_host/machine/watch.h"

namespace metroplex::kernels_on_host {

enum class Use { in, out, both };  // out: uninitialized

template <class T>
class DeviceArray {
 public:
  // `shift`: elements by which it begins after a multiple of 64 bytes.
  DeviceArray(const std::vector<T>& values, Use use, std::string name, size_t shift = 0)
      : count_(values.size()), shift_(shift) {
    const size_t bytes = (count_ + shift_) * sizeof(T);
    // The block ends with the array; its end is not aligned.
    if (posix_memalign(&block_, 64, bytes == 0 ? 1 : bytes) != 0) abort();
    if (count_ > 0) memcpy(data(), values.data(), count_ * sizeof(T));
    if (use == Use::out && count_ > 0) memset(static_cast<void*>(data()), 0xA5, count_ * sizeof(T));
    watch_memory({data(), count_ * sizeof(T), sizeof(T), use != Use::in, use != Use::out, std::move(name)});
  }
  ~DeviceArray() {
    forget_memory(data());
    free(block_);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return static_cast<T*>(block_) + shift_; }
  T* data_or_null() const { return count_ == 0 ? nullptr : data(); }
  std::vector<T> values() const { return {data(), data() + count_}; }

 private:
  void* block_ = nullptr;
  size_t count_, shift_;
};

}  // namespace metroplex::kernels_on_host

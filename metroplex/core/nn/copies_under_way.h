// Memory management of activation offload to the host without querying CUDA events through libtorch's allocators.
// A step under graph capture cannot query events, so the allocators would hold every byte until the step ends. All
// copies of a rank are issued in order on one side stream. A pinned buffer may therefore be overwritten once its
// last copy back has been issued. The source of a copy is free once the compute stream waits for the copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

namespace metroplex::nn {

// Tensors whose copies to the host have been issued. Keeps the last kMaxPending. When another one is added, the
// compute stream waits for the oldest copy and its tensor is released.
class PendingCopies {
 public:
  static constexpr size_t kMaxPending = 2;

  // `join` makes the current stream wait for the copy of x.
  void add(at::Tensor x, std::function<void()> join) {
    copies_.push_back({std::move(x), std::move(join)});
    ++issued_;
    if (copies_.size() <= kMaxPending) return;
    copies_.front().join();
    copies_.pop_front();
  }
  int64_t issued() const { return issued_; }  // total, including released ones
  // Call after the current stream has waited for an event recorded after the first `issued` copies.
  void joined(int64_t issued) {
    while (!copies_.empty() && issued_ - static_cast<int64_t>(copies_.size()) < issued) copies_.pop_front();
  }

 private:
  struct Copy {
    at::Tensor x;
    std::function<void()> join;
  };
  std::deque<Copy> copies_;
  int64_t issued_ = 0;
};

// Pool of host buffers by size. Buffers are reused and never freed, so the pool holds the peak number in use.
class HostBuffers {
 public:
  // `make` takes the number of bytes and returns a tensor [bytes] uint8.
  explicit HostBuffers(std::function<at::Tensor(int64_t)> make) : make_(std::move(make)) {}

  at::Tensor take(int64_t bytes) {
    std::vector<at::Tensor>& buffers = free_[bytes];
    if (buffers.empty()) return make_(bytes);
    at::Tensor buffer = std::move(buffers.back());
    buffers.pop_back();
    return buffer;
  }
  void release(at::Tensor buffer) { free_[buffer.numel()].push_back(std::move(buffer)); }

 private:
  std::function<at::Tensor(int64_t)> make_;
  std::map<int64_t, std::vector<at::Tensor>> free_;
};

}  // namespace metroplex::nn

// What offload to the host does with memory, without asking libtorch's allocators when an event has come: a captured
// step can ask nothing, and would keep every byte until its end. All copies of a rank go to one side stream, in
// order, so a pinned buffer may be written again as soon as its last copy back has been issued, and the memory that a
// copy reads is free once the computation's stream has been made to wait for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

namespace metroplex::nn {

// Tensors whose copies to the host have been issued. Of them the last kMost stay; the computation's stream waits for
// an older one, which is then dropped.
class CopiesUnderWay {
 public:
  static constexpr size_t kMost = 2;

  // `join` makes the current stream wait for the copy of x.
  void add(at::Tensor x, std::function<void()> join) {
    copies_.push_back({std::move(x), std::move(join)});
    ++issued_;
    if (copies_.size() <= kMost) return;
    copies_.front().join();
    copies_.pop_front();
  }
  int64_t issued() const { return issued_; }  // ever
  // The current stream has waited for something behind the first `issued` copies.
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

// Buffers of host memory by their size, used again and never given back: as many as were taken at once.
class HostBuffers {
 public:
  // `make` gets bytes and returns [bytes] uint8.
  explicit HostBuffers(std::function<at::Tensor(int64_t)> make) : make_(std::move(make)) {}

  at::Tensor take(int64_t bytes) {
    std::vector<at::Tensor>& of_size = free_[bytes];
    if (of_size.empty()) return make_(bytes);
    at::Tensor buffer = std::move(of_size.back());
    of_size.pop_back();
    return buffer;
  }
  void give(at::Tensor buffer) { free_[buffer.numel()].push_back(std::move(buffer)); }

 private:
  std::function<at::Tensor(int64_t)> make_;
  std::map<int64_t, std::vector<at::Tensor>> free_;
};

}  // namespace metroplex::nn

#include "nn/saved_host.h"

#include <ATen/ATen.h>

namespace metroplex::nn {
namespace {

// The device's allocator gives freed memory out again in the order of the stream, and the pinned allocator waits for
// copies under way: handles may be dropped right after an asynchronous copy.
class HostBytes final : public Parked {
 public:
  explicit HostBytes(const at::Tensor& bytes)
      : device_(bytes.device()),
        pinned_(at::empty(bytes.sizes(), bytes.options().device(at::kCPU).pinned_memory(true))) {
    pinned_.copy_(bytes, /*non_blocking=*/true);
  }
  void prefetch() override {
    if (!fetched_.defined()) fetched_ = pinned_.to(device_, /*non_blocking=*/true);
  }
  at::Tensor fetch() override {
    prefetch();
    return std::move(fetched_);
  }

 private:
  at::Device device_;
  at::Tensor pinned_, fetched_;
};

class HostStore final : public ActivationStore {
  std::unique_ptr<Parked> park(const at::Tensor& bytes) override {
    return bytes.is_cpu() ? nullptr : std::make_unique<HostBytes>(bytes);
  }
};

}  // namespace

std::shared_ptr<ActivationStore> make_host_store() { return std::make_shared<HostStore>(); }

}  // namespace metroplex::nn

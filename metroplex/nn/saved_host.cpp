#include "nn/saved_stores.h"

#include <ATen/ATen.h>

#include <optional>

#include "cuda/side_stream.h"

namespace metroplex::nn {
namespace {

// The pinned-memory allocator waits for copies in flight, so a pinned tensor may be dropped right after a copy was
// issued.
class HostBytes final : public Parked {
 public:
  HostBytes(const at::Tensor& bytes, const cuda::SideStream& stream)
      : stream_(stream),
        device_(bytes.device()),
        pinned_(at::empty(bytes.sizes(), bytes.options().device(at::kCPU).pinned_memory(true))) {
    stream_.wait_for_current();
    stream_.run([&] { pinned_.copy_(bytes, /*non_blocking=*/true); });
    stream_.uses(bytes);
  }
  // The memory comes from the current stream's pool, whose earlier kernels may still be using it.
  void prefetch() override {
    if (fetched_.defined()) return;
    fetched_ = at::empty(pinned_.sizes(), pinned_.options().device(device_).pinned_memory(false));
    stream_.wait_for_current();
    stream_.uses(fetched_);  // it may be dropped without having been fetched
    stream_.run([&] { fetched_.copy_(pinned_, /*non_blocking=*/true); });
    here_ = stream_.mark();
  }
  at::Tensor fetch() override {
    prefetch();
    here_.block();
    return std::move(fetched_);
  }

 private:
  cuda::SideStream stream_;
  at::Device device_;
  at::Tensor pinned_, fetched_;
  cuda::SideStream::Mark here_;
};

class HostStore final : public ActivationStore {
  std::unique_ptr<Parked> park(const at::Tensor& bytes) override {
    if (bytes.is_cpu()) return nullptr;
    if (!stream_) stream_.emplace(bytes.device());
    return std::make_unique<HostBytes>(bytes, *stream_);
  }

  std::optional<cuda::SideStream> stream_;
};

}  // namespace

std::shared_ptr<ActivationStore> make_host_store() { return std::make_shared<HostStore>(); }

}  // namespace metroplex::nn

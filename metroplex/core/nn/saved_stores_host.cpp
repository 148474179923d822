#include "nn/saved_stores.h"

#include <ATen/ops/empty.h>

#include "device/side_stream.h"
#include "nn/copies_under_way.h"

namespace metroplex::nn {
namespace {

// The store of a rank and its parked tensors share this state.
struct HostCopies {
  explicit HostCopies(at::Device device) : stream(device) {}

  device::SideStream stream;
  PendingCopies pending;
  HostBuffers buffers{
      [](int64_t bytes) { return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true)); }};
};

class HostBytes final : public OffloadedBytes {
 public:
  HostBytes(const at::Tensor& bytes, std::shared_ptr<HostCopies> side)
      : state_(std::move(side)), options_(bytes.options()), pinned_(state_->buffers.take(bytes.numel())) {
    const device::SideStream& stream = state_->stream;
    stream.wait_for_current();
    stream.run([&] { pinned_.copy_(bytes, /*non_blocking=*/true); });
    const auto mark = std::make_shared<device::SideStream::Mark>(stream.mark());
    state_->pending.add(bytes, [mark] { mark->block(); });
  }
  // Handles destruction with and without a prior fetch().
  ~HostBytes() override {
    if (fetched_.defined()) fetched_mark_.block();
    if (pinned_.defined()) state_->buffers.release(std::move(pinned_));
  }
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;

  // Allocates from the current stream's pool, so the side stream first waits for that stream's earlier kernels.
  void prefetch() override {
    if (fetched_.defined()) return;
    fetched_ = at::empty({pinned_.numel()}, options_);
    state_->stream.wait_for_current();
    state_->stream.run([&] { fetched_.copy_(pinned_, /*non_blocking=*/true); });
    fetched_mark_ = state_->stream.mark();
    num_issued_ = state_->pending.issued();
  }
  at::Tensor fetch() override {
    prefetch();
    fetched_mark_.block();
    state_->pending.joined(num_issued_);
    return std::exchange(fetched_, {});
  }

 private:
  std::shared_ptr<HostCopies> state_;
  at::TensorOptions options_;
  at::Tensor pinned_, fetched_;
  device::SideStream::Mark fetched_mark_;
  int64_t num_issued_ = 0;  // copies to the host issued before it
};

class HostStore final : public ActivationStore {
  std::unique_ptr<OffloadedBytes> park(const at::Tensor& bytes) override {
    if (bytes.is_cpu()) return nullptr;
    if (!state_) state_ = std::make_shared<HostCopies>(bytes.device());
    return std::make_unique<HostBytes>(bytes, state_);
  }

  std::shared_ptr<HostCopies> state_;
};

}  // namespace

std::shared_ptr<ActivationStore> make_host_store() { return std::make_shared<HostStore>(); }

}  // namespace metroplex::nn

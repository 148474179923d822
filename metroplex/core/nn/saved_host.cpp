#include "nn/saved_stores.h"

#include <ATen/ops/empty.h>

#include "device/side_stream.h"
#include "nn/copies_under_way.h"

namespace metroplex::nn {
namespace {

// The store of a rank and its parked tensors share this state.
struct HostSide {
  explicit HostSide(at::Device device) : stream(device) {}

  device::SideStream stream;
  CopiesUnderWay leaving;
  HostBuffers buffers{
      [](int64_t bytes) { return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true)); }};
};

class HostBytes final : public Parked {
 public:
  HostBytes(const at::Tensor& bytes, std::shared_ptr<HostSide> side)
      : side_(std::move(side)), options_(bytes.options()), pinned_(side_->buffers.take(bytes.numel())) {
    const device::SideStream& stream = side_->stream;
    stream.wait_for_current();
    stream.run([&] { pinned_.copy_(bytes, /*non_blocking=*/true); });
    const auto mark = std::make_shared<device::SideStream::Mark>(stream.mark());
    side_->leaving.add(bytes, [mark] { mark->block(); });
  }
  // Handles destruction with and without a prior fetch().
  ~HostBytes() override {
    if (fetched_.defined()) here_.block();
    if (pinned_.defined()) side_->buffers.give(std::move(pinned_));
  }
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;

  // Allocates from the current stream's pool, so the side stream first waits for that stream's earlier kernels.
  void prefetch() override {
    if (fetched_.defined()) return;
    fetched_ = at::empty({pinned_.numel()}, options_);
    side_->stream.wait_for_current();
    side_->stream.run([&] { fetched_.copy_(pinned_, /*non_blocking=*/true); });
    here_ = side_->stream.mark();
    before_ = side_->leaving.issued();
  }
  at::Tensor fetch() override {
    prefetch();
    here_.block();
    side_->leaving.joined(before_);
    return std::exchange(fetched_, {});
  }

 private:
  std::shared_ptr<HostSide> side_;
  at::TensorOptions options_;
  at::Tensor pinned_, fetched_;
  device::SideStream::Mark here_;
  int64_t before_ = 0;  // copies to the host issued before it
};

class HostStore final : public ActivationStore {
  std::unique_ptr<Parked> park(const at::Tensor& bytes) override {
    if (bytes.is_cpu()) return nullptr;
    if (!side_) side_ = std::make_shared<HostSide>(bytes.device());
    return std::make_unique<HostBytes>(bytes, side_);
  }

  std::shared_ptr<HostSide> side_;
};

}  // namespace

std::shared_ptr<ActivationStore> make_host_store() { return std::make_shared<HostStore>(); }

}  // namespace metroplex::nn

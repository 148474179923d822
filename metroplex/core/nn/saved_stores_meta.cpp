#include "nn/saved_stores.h"

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "nn/copies_under_way.h"

namespace metroplex::nn {
namespace {

class MetaBytes final : public OffloadedBytes {
 public:
  // `pending`: null if device memory is freed at once and reallocated by fetch(), as in the file store.
  MetaBytes(const at::Tensor& bytes, std::shared_ptr<PendingCopies> pending)
      : count_(bytes.numel()), options_(bytes.options()), pending_(std::move(pending)) {
    if (pending_) pending_->add(bytes, [] {});
  }
  void prefetch() override {
    if (!pending_ || fetched_.defined()) return;
    fetched_ = at::empty({count_}, options_);
    num_issued_ = pending_->issued();
  }
  at::Tensor fetch() override {
    prefetch();
    if (pending_) pending_->joined(num_issued_);
    if (!fetched_.defined()) fetched_ = at::empty({count_}, options_);
    return std::move(fetched_);
  }

 private:
  int64_t count_;
  at::TensorOptions options_;
  std::shared_ptr<PendingCopies> pending_;
  at::Tensor fetched_;
  int64_t num_issued_ = 0;
};

class MetaStore final : public ActivationStore {
 public:
  explicit MetaStore(std::shared_ptr<PendingCopies> pending) : pending_(std::move(pending)) {}

 private:
  std::unique_ptr<OffloadedBytes> park(const at::Tensor& bytes) override {
    MPX_ASSERT(bytes.is_meta(), "the offload store of the meta device got a tensor of another device");
    return std::make_unique<MetaBytes>(bytes, pending_);
  }
  std::shared_ptr<PendingCopies> pending_;
};

// Tensors in host memory stay there.
class NoOffloadStore final : public ActivationStore {
  std::unique_ptr<OffloadedBytes> park(const at::Tensor& /*bytes*/) override { return nullptr; }
};

}  // namespace

std::shared_ptr<ActivationStore> make_meta_store(config::Offload offload, const device::Target& target) {
  switch (offload) {
    case config::Offload::none:
      return nullptr;
    case config::Offload::host:
      if (!target.gpu()) return std::make_shared<NoOffloadStore>();
      return std::make_shared<MetaStore>(std::make_shared<PendingCopies>());
    case config::Offload::file:
      return std::make_shared<MetaStore>(nullptr);
  }
  MPX_ASSERT(false, "memory.offload_activations has a value that make_meta_store does not know");
}

}  // namespace metroplex::nn

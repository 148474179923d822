#include "nn/saved_stores.h"

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "nn/copies_under_way.h"

namespace metroplex::nn {
namespace {

class MetaBytes final : public Parked {
 public:
  // `leaving`: null if device memory is freed at once and allocated by fetch(), as the file store does.
  MetaBytes(const at::Tensor& bytes, std::shared_ptr<CopiesUnderWay> leaving)
      : count_(bytes.numel()), options_(bytes.options()), leaving_(std::move(leaving)) {
    if (leaving_) leaving_->add(bytes, [] {});
  }
  void prefetch() override {
    if (!leaving_ || fetched_.defined()) return;
    fetched_ = at::empty({count_}, options_);
    before_ = leaving_->issued();
  }
  at::Tensor fetch() override {
    prefetch();
    if (leaving_) leaving_->joined(before_);
    if (!fetched_.defined()) fetched_ = at::empty({count_}, options_);
    return std::move(fetched_);
  }

 private:
  int64_t count_;
  at::TensorOptions options_;
  std::shared_ptr<CopiesUnderWay> leaving_;
  at::Tensor fetched_;
  int64_t before_ = 0;
};

class MetaStore final : public ActivationStore {
 public:
  explicit MetaStore(std::shared_ptr<CopiesUnderWay> leaving) : leaving_(std::move(leaving)) {}

 private:
  std::unique_ptr<Parked> park(const at::Tensor& bytes) override {
    MPX_ASSERT(bytes.is_meta(), "the offload store of the meta device got a tensor of another device");
    return std::make_unique<MetaBytes>(bytes, leaving_);
  }
  std::shared_ptr<CopiesUnderWay> leaving_;
};

// Tensors in host memory stay there.
class StayingStore final : public ActivationStore {
  std::unique_ptr<Parked> park(const at::Tensor& /*bytes*/) override { return nullptr; }
};

}  // namespace

std::shared_ptr<ActivationStore> make_meta_store(config::Offload offload, const device::Target& target) {
  switch (offload) {
    case config::Offload::none:
      return nullptr;
    case config::Offload::host:
      if (!target.gpu()) return std::make_shared<StayingStore>();
      return std::make_shared<MetaStore>(std::make_shared<CopiesUnderWay>());
    case config::Offload::file:
      return std::make_shared<MetaStore>(nullptr);
  }
  MPX_ASSERT(false, "memory.offload_activations has a value that make_meta_store does not know");
}

}  // namespace metroplex::nn

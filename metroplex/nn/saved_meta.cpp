#include "nn/saved_stores.h"

#include <ATen/ops/empty.h>

#include "base/error.h"

namespace metroplex::nn {
namespace {

class MetaBytes final : public Parked {
 public:
  MetaBytes(const at::Tensor& bytes, bool ahead) : count_(bytes.numel()), options_(bytes.options()), ahead_(ahead) {}
  void prefetch() override {
    if (ahead_ && !fetched_.defined()) fetched_ = at::empty({count_}, options_);
  }
  at::Tensor fetch() override {
    if (!fetched_.defined()) fetched_ = at::empty({count_}, options_);
    return std::move(fetched_);
  }

 private:
  int64_t count_;
  at::TensorOptions options_;
  bool ahead_;  // room on the device is taken by prefetch
  at::Tensor fetched_;
};

class MetaStore final : public ActivationStore {
 public:
  explicit MetaStore(bool ahead) : ahead_(ahead) {}

 private:
  std::unique_ptr<Parked> park(const at::Tensor& bytes) override {
    MPX_ASSERT(bytes.is_meta(), "the offload store of the meta device got a tensor of another device");
    return std::make_unique<MetaBytes>(bytes, ahead_);
  }
  bool ahead_;
};

// What lies in the host's memory already stays there.
class StayingStore final : public ActivationStore {
  std::unique_ptr<Parked> park(const at::Tensor& /*bytes*/) override { return nullptr; }
};

}  // namespace

std::shared_ptr<ActivationStore> make_meta_store(config::Offload offload, const cuda::Target& target) {
  switch (offload) {
    case config::Offload::none:
      return nullptr;
    case config::Offload::host:
      if (!target.gpu()) return std::make_shared<StayingStore>();
      return std::make_shared<MetaStore>(/*ahead=*/true);
    case config::Offload::file:
      return std::make_shared<MetaStore>(/*ahead=*/false);
  }
  MPX_ASSERT(false, "memory.offload_activations has a value that make_meta_store does not know");
}

}  // namespace metroplex::nn

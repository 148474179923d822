#include "nn/saved.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "nn/saved_stores.h"

namespace metroplex::nn {

struct SavedStorage {
  at::Storage storage;
  std::unique_ptr<OffloadedBytes> offloaded;  // if set, `storage` is empty

  void restore() {
    if (!offloaded) return;
    storage = offloaded->fetch().storage();
    offloaded.reset();
  }
};

namespace {

class RecomputedSource final : public Saved::Source {
 public:
  explicit RecomputedSource(std::function<at::Tensor()> make) : make_(std::move(make)) {}
  at::Tensor get() override {
    if (make_) {
      const at::NoGradGuard no_grad;
      value_ = make_();
      make_ = nullptr;
    }
    return value_;
  }

 private:
  std::function<at::Tensor()> make_;
  at::Tensor value_;
};

class StorageView final : public Saved::Source {
 public:
  StorageView(const at::Tensor& x, std::shared_ptr<SavedStorage> storage)
      : storage_(std::move(storage)),
        options_(x.options().requires_grad(false)),
        sizes_(x.sizes().vec()),
        strides_(x.strides().vec()),
        offset_(x.storage_offset()) {}
  at::Tensor get() override {
    const at::NoGradGuard no_grad;
    storage_->restore();
    return at::empty({0}, options_).set_(storage_->storage, offset_, sizes_, strides_);
  }

 private:
  std::shared_ptr<SavedStorage> storage_;
  at::TensorOptions options_;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_;
};

}  // namespace

Saved Saved::recomputed(std::function<at::Tensor()> make) {
  return Saved(std::make_shared<RecomputedSource>(std::move(make)));
}

void SavedSet::prefetch() const {
  for (const auto& storage : storages_) {
    if (storage->offloaded) storage->offloaded->prefetch();
  }
}

void SavedSet::restore() {
  for (const auto& storage : storages_) storage->restore();
  storages_.clear();
}

void ActivationStore::begin() {
  open_ = true;
  storages_.clear();
}

SavedSet ActivationStore::end() {
  MPX_ASSERT(open_, "ActivationStore::end without begin");
  open_ = false;
  std::vector<std::shared_ptr<SavedStorage>> saved_set;
  for (std::shared_ptr<SavedStorage>& saved : storages_) {
    const auto bytes = static_cast<int64_t>(saved->storage.nbytes());
    if (bytes == 0) continue;
    const at::TensorOptions options = at::TensorOptions().dtype(at::kByte).device(saved->storage.device());
    saved->offloaded = park(at::empty({0}, options).set_(saved->storage, 0, {bytes}, {1}));
    if (!saved->offloaded) continue;
    saved->storage = at::Storage();
    saved_set.push_back(std::move(saved));
  }
  storages_.clear();
  return SavedSet(std::move(saved_set));
}

Saved ActivationStore::keep(const at::Tensor& x) {
  if (!open_ || !x.defined()) return Saved(x.defined() ? x.detach() : x);
  std::shared_ptr<SavedStorage> shared;
  for (const auto& known : storages_) {
    if (known->storage.is_alias_of(x.storage())) shared = known;
  }
  if (!shared) {
    shared = std::make_shared<SavedStorage>(SavedStorage{x.storage(), nullptr});
    storages_.push_back(shared);
  }
  return Saved(std::make_shared<StorageView>(x, std::move(shared)));
}

std::shared_ptr<ActivationStore> make_activation_store(const config::Memory& memory, const device::Target& target) {
  if (target.meta) return make_meta_store(memory.offload_activations, target);
  switch (memory.offload_activations) {
    case config::Offload::none:
      return nullptr;
    case config::Offload::host:
      return make_host_store();
    case config::Offload::file:
      return make_file_store(memory.offload_directory);
  }
  MPX_ASSERT(false, "offload_activations ", memory.offload_activations);
}

SavePolicy save_policy(const config::Memory& memory, std::shared_ptr<ActivationStore> store) {
  return {memory.recomputed_save_points(), std::move(store)};
}

}  // namespace metroplex::nn

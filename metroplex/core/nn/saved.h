// Storage of tensors from forward to backward: a tensor is persistent, offloaded, or recomputed (Megatron's
// output-discarding recompute). Layers capture a Saved instead of a tensor; a SavePolicy selects one of the three.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "config/memory.h"
#include "device/launch_point.h"

namespace metroplex::nn {

using config::SavePoint;
using config::SavePointSet;

class Saved {
 public:
  struct Source {
    virtual ~Source() = default;
    virtual at::Tensor get() = 0;
  };

  Saved() = default;  // get() is undefined
  explicit Saved(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  explicit Saved(std::shared_ptr<Source> source) : source_(std::move(source)) {}
  // The first get() calls `make`, without autograd. Copies share the result, which is freed with the last copy.
  static Saved recomputed(std::function<at::Tensor()> make);

  bool defined() const { return source_ != nullptr || tensor_.defined(); }
  at::Tensor get() const { return source_ ? source_->get() : tensor_; }

 private:
  at::Tensor tensor_;
  std::shared_ptr<Source> source_;
};

// The input of a layer. If `recomputed` is defined, backward uses it, and the layer does not save x.
struct Input {
  Input(at::Tensor x) : x(std::move(x)) {}  // NOLINT: a plain tensor is an input
  Input(at::Tensor x, Saved recomputed) : x(std::move(x)), recomputed(std::move(recomputed)) {}
  at::Tensor x;
  Saved recomputed;
};

// The offloaded bytes of one storage.
class OffloadedBytes {
 public:
  virtual ~OffloadedBytes() = default;
  virtual void prefetch() {}       // starts the copy back; call fetch() soon after
  virtual at::Tensor fetch() = 0;  // [bytes] uint8 on the original device
};

struct SavedStorage;

// The storages saved between begin() and end() of an ActivationStore, each once even if several views were saved.
class SavedSet {
 public:
  SavedSet() = default;
  explicit SavedSet(std::vector<std::shared_ptr<SavedStorage>> storages) : storages_(std::move(storages)) {}
  void prefetch() const;
  void restore();  // copies everything back; then only the Saveds keep it alive

 private:
  std::vector<std::shared_ptr<SavedStorage>> storages_;
};

// Offloads saved tensors between forward and backward. One per rank, used by one thread.
class ActivationStore {
 public:
  virtual ~ActivationStore() = default;
  // Tensors saved between begin() and end() form one set, which end() offloads. Other tensors stay in memory.
  void begin();
  SavedSet end();
  Saved keep(const at::Tensor& x);

 protected:
  // Returns null if these bytes are not offloaded.
  virtual std::unique_ptr<OffloadedBytes> park(const at::Tensor& bytes) = 0;

 private:
  bool open_ = false;
  std::vector<std::shared_ptr<SavedStorage>> storages_;
};

// Creates the store for memory.offload_activations; null for none. "host": GPU tensors go to pinned memory, CPU
// tensors stay. "file": an unlinked file in memory.offload_directory, which the operating system frees when the
// process ends. On the meta device nothing is copied: storages are freed and allocated as by the real store.
std::shared_ptr<ActivationStore> make_activation_store(const config::Memory& memory,
                                                       const device::Target& target = {});

struct SavePolicy {
  SavePointSet recomputed;                 // recomputed in backward instead of saved
  std::shared_ptr<ActivationStore> store;  // null: no offload

  bool recomputes(SavePoint point) const { return recomputed.has(point); }
  Saved keep(const at::Tensor& x) const { return store ? store->keep(x) : Saved(x.detach()); }
  Saved keep(const Input& in) const { return in.recomputed.defined() ? in.recomputed : keep(in.x); }
};
SavePolicy save_policy(const config::Memory& memory, std::shared_ptr<ActivationStore> store);

}  // namespace metroplex::nn

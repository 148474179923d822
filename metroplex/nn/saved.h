// What backward needs from forward: a tensor that is kept, one that is offloaded until then, or one that is
// recomputed (Megatron's output-discarding recompute). Layers capture a Saved where they would capture a tensor; a
// SavePolicy decides which of the three it is.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "config/memory.h"
#include "cuda/launch_point.h"

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
  explicit Saved(at::Tensor kept) : kept_(std::move(kept)) {}
  explicit Saved(std::shared_ptr<Source> source) : source_(std::move(source)) {}
  // The first get() calls `make`, without autograd. Copies share its result, which is freed with the last of them.
  static Saved recomputed(std::function<at::Tensor()> make);

  bool defined() const { return source_ != nullptr || kept_.defined(); }
  at::Tensor get() const { return source_ ? source_->get() : kept_; }

 private:
  at::Tensor kept_;
  std::shared_ptr<Source> source_;
};

// The input of a layer. `recomputed`, where defined, gives it to backward, and the layer does not save x itself.
struct Input {
  Input(at::Tensor x) : x(std::move(x)) {}  // NOLINT: a plain tensor is an input
  Input(at::Tensor x, Saved recomputed) : x(std::move(x)), recomputed(std::move(recomputed)) {}
  at::Tensor x;
  Saved recomputed;
};

// The offloaded bytes of one storage.
class Parked {
 public:
  virtual ~Parked() = default;
  virtual void prefetch() {}       // starts the copy back; fetch() follows soon
  virtual at::Tensor fetch() = 0;  // [bytes] uint8 on the device they came from
};

struct SavedStorage;

// What was kept between one begin() and end() of an ActivationStore: each storage once, however many views of it.
class SavedSet {
 public:
  SavedSet() = default;
  explicit SavedSet(std::vector<std::shared_ptr<SavedStorage>> storages) : storages_(std::move(storages)) {}
  void prefetch() const;
  void restore();  // brings everything back; from then on the Saveds that need it keep it alive

 private:
  std::vector<std::shared_ptr<SavedStorage>> storages_;
};

// Offloads what is saved between forward and backward. One per rank, used by one thread.
class ActivationStore {
 public:
  virtual ~ActivationStore() = default;
  // Everything kept between begin() and end() belongs to one set, which end() offloads. What is kept outside of the
  // two stays in memory.
  void begin();
  SavedSet end();
  Saved keep(const at::Tensor& x);

 protected:
  // Null: these bytes are not offloaded.
  virtual std::unique_ptr<Parked> park(const at::Tensor& bytes) = 0;

 private:
  bool open_ = false;
  std::vector<std::shared_ptr<SavedStorage>> storages_;  // of the open set
};

// As memory.offload_activations says; null for none. "host": GPU tensors go to pinned memory, CPU tensors stay.
// "file": an unlinked file in memory.offload_directory, gone with the process however it ends. On the meta device
// nothing is copied: storages are dropped and allocated again when the real store would, for the memory prediction.
std::shared_ptr<ActivationStore> make_activation_store(const config::Memory& memory, const cuda::Target& target = {});

// How layers keep what their backward needs.
struct SavePolicy {
  SavePointSet recomputed;                 // not saved, but recomputed in backward
  std::shared_ptr<ActivationStore> store;  // null: no offload

  bool recomputes(SavePoint point) const { return recomputed.has(point); }
  Saved keep(const at::Tensor& x) const { return store ? store->keep(x) : Saved(x.detach()); }
  Saved keep(const Input& in) const { return in.recomputed.defined() ? in.recomputed : keep(in.x); }
};
SavePolicy save_policy(const config::Memory& memory, std::shared_ptr<ActivationStore> store);

}  // namespace metroplex::nn

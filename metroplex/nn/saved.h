// What backward needs of forward: a tensor that is kept, one whose bytes lie elsewhere until then (offload), or one
// that is made again (recompute in the output-discarding form). Layers capture a Saved where they would capture a
// tensor; a SavePolicy says which of the three it is.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "config/save_point.h"
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
  // `make` is called by the first get(), without autograd; copies share its result, which dies with the last of them.
  static Saved recomputed(std::function<at::Tensor()> make);

  bool defined() const { return source_ != nullptr || kept_.defined(); }
  at::Tensor get() const { return source_ ? source_->get() : kept_; }

 private:
  at::Tensor kept_;
  std::shared_ptr<Source> source_;
};

// The input of a layer and how its backward gets it again; with `again` undefined the layer keeps it.
struct Input {
  Input(at::Tensor x) : x(std::move(x)) {}  // NOLINT: a plain tensor is an input
  Input(at::Tensor x, Saved again) : x(std::move(x)), again(std::move(again)) {}
  at::Tensor x;
  Saved again;
};

// The bytes of one storage, out of the way.
class Parked {
 public:
  virtual ~Parked() = default;
  virtual void prefetch() {}       // fetch() comes soon
  virtual at::Tensor fetch() = 0;  // [bytes] uint8 on the device they came from
};

struct SavedStorage;

// What one segment keeps: each storage once, however many views of it were kept.
class SavedSet {
 public:
  SavedSet() = default;
  explicit SavedSet(std::vector<std::shared_ptr<SavedStorage>> storages) : storages_(std::move(storages)) {}
  void prefetch() const;
  void restore();  // everything is in memory again, and lives as long as the Saveds that need it

 private:
  std::vector<std::shared_ptr<SavedStorage>> storages_;
};

// Moves what is kept between forward and backward out of the way. One a rank, for one thread.
class ActivationStore {
 public:
  virtual ~ActivationStore() = default;
  // Between begin() and end(), which moves it away, all that is kept belongs to one set. Outside it stays in memory.
  void begin();
  SavedSet end();
  Saved keep(const at::Tensor& x);

 protected:
  // Null: these bytes stay where they are.
  virtual std::unique_ptr<Parked> park(const at::Tensor& bytes) = 0;

 private:
  bool open_ = false;
  std::vector<std::shared_ptr<SavedStorage>> storages_;  // of the open set
};

// memory.offload_activations: null for none. "host": pinned memory for what lies on a GPU (what lies in the host's
// memory stays there). "file": an unlinked file in memory.offload_directory, gone with the process however it ends.
// For a target on the meta device neither: bytes are dropped and made again when they would be on the real one.
std::shared_ptr<ActivationStore> make_activation_store(const config::Memory& memory, const cuda::Target& target = {});

// How layers keep what their backward needs.
struct SavePolicy {
  SavePointSet recomputed;                 // not kept, but made again by backward
  std::shared_ptr<ActivationStore> store;  // null: memory

  bool recomputes(SavePoint point) const { return recomputed.has(point); }
  Saved keep(const at::Tensor& x) const { return store ? store->keep(x) : Saved(x.detach()); }
  Saved keep(const Input& in) const { return in.again.defined() ? in.again : keep(in.x); }
};
SavePolicy save_policy(const config::Memory& memory, std::shared_ptr<ActivationStore> store);

}  // namespace metroplex::nn

// Records a tape of what its thread issues: our own operations, as the Recorder of their Target, and libtorch's
// calls, which it intercepts.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/graph/tape.h"
#include "cuda/graph/tape_pool.h"
#include "cuda/launch_point.h"

namespace c10 {
class OperatorHandle;
}

namespace metroplex::cuda {

// How a recording intercepts libtorch: the calling thread's operator calls and allocations. tape_hooks.cpp holds the
// state that libtorch wants per process and per thread: a dispatcher fallback and the CPU allocator.

class LibraryCalls {
 public:
  virtual ~LibraryCalls() = default;
  // Instead of an operator below autograd: arguments on the stack, results to be left there by run_below().
  virtual void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) = 0;
};
// Runs the operator itself; what it calls is not seen.
void run_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);
// Runs `work`, whose calls are not seen.
void unseen(const std::function<void()>& work);

// As long as it lives, libtorch's operators of this thread go to `calls` (null: they stay), and CPU tensors of this
// thread get their memory from `pool` (null: from where they get it otherwise). They nest.
class TapeHooks {
 public:
  TapeHooks(LibraryCalls* calls, std::shared_ptr<TapePool> pool);
  ~TapeHooks();
  TapeHooks(const TapeHooks&) = delete;
  TapeHooks& operator=(const TapeHooks&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Called before and after an operation touches memory; the guarded arena forbids all other accesses.
class OperationWatch {
 public:
  virtual ~OperationWatch() = default;
  virtual void before(const TapeOperation& operation) = 0;
  virtual void after(const TapeOperation& operation) = 0;
};

class TapeRecorder final : public Recorder, private LibraryCalls {
 public:
  TapeRecorder();
  ~TapeRecorder() override;

  // Between the two, operations are run and recorded; otherwise only run. `strict`: one that is unfit for a graph
  // ends the recording by base::Error("cuda graph", ...); else TapeOperation::unfit says so.
  void begin(std::shared_ptr<TapePool> pool, bool strict = true);
  Tape end();
  void abandon() noexcept;
  bool recording() const { return recording_ != nullptr; }

  // Names who issues what follows, in errors and findings.
  void set_place(std::string place) { place_ = std::move(place); }
  const std::string& place() const { return place_; }
  void set_watch(OperationWatch* watch) { watch_ = watch; }

  // By name, the groups that it has been told of.
  const std::map<std::string, TapeGroup>& groups() const { return groups_; }

  void run(Operation operation) override;
  void joins(const std::string& group, const std::string& purpose, const std::vector<int>& ranks) override {
    groups_[group] = {purpose, ranks};
  }
  at::Tensor held(const at::Tensor& x) override;
  void mark(std::function<void()> host) override;

 private:
  struct Recording;
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override;
  void add(TapeOperation operation);

  std::unique_ptr<Recording> recording_;
  std::string place_;
  std::map<std::string, TapeGroup> groups_;
  OperationWatch* watch_ = nullptr;
};

}  // namespace metroplex::cuda

// Records a tape of the work that its thread issues: our own operators, as the Recorder of their Target, and
// libtorch's calls, which it intercepts.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/tape.h"
#include "graph/tape_pool.h"
#include "device/launch_point.h"

namespace c10 {
class OperatorHandle;
}

namespace metroplex::graph {

// Interception of the calling thread's libtorch operators and allocations. tape_recorder_hooks.cpp holds the state
// that libtorch requires per process and per thread: a dispatcher fallback and the CPU allocator.

class LibraryCalls {
 public:
  virtual ~LibraryCalls() = default;
  // Replaces an operator below autograd: arguments are on the stack, and run_below() leaves the results there.
  virtual void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) = 0;
};
// Runs the operator itself; its inner calls are not intercepted.
void run_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);
// Runs `work` without intercepting its calls.
void unseen(const std::function<void()>& work);

// During its lifetime, libtorch's operators of this thread go to `calls` (null: unchanged), and CPU tensors of this
// thread are allocated from `pool` (null: default allocator). They may nest.
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

// Receives calls before and after an operation accesses memory; the guarded arena forbids all other accesses.
class OperationWatch {
 public:
  virtual ~OperationWatch() = default;
  virtual void before(const TapeOperation& operation) = 0;
  virtual void after(const TapeOperation& operation) = 0;
};

class TapeRecorder final : public device::Recorder, private LibraryCalls {
 public:
  TapeRecorder();
  ~TapeRecorder() override;

  // Start and end a recording; outside a recording, operations are only run. `strict`: an operation that cannot be
  // captured throws base::Error("cuda graph", ...); otherwise TapeOperation::unfit has the reason.
  void begin(std::shared_ptr<TapePool> pool, bool strict = true);
  Tape end();
  void abandon() noexcept;
  bool recording() const { return recording_ != nullptr; }

  // Sets the issuer of the following operations, for errors and diagnostics.
  void set_place(std::string place) { place_ = std::move(place); }
  const std::string& place() const { return place_; }
  void set_watch(OperationWatch* watch) { watch_ = watch; }

  const std::map<std::string, TapeGroup>& groups() const { return groups_; }

  void run(device::Operation operation) override;
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

}  // namespace metroplex::graph

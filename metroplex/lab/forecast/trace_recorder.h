// Records the allocations and operations of a rank on the meta device, per autograd region. Allocations during a
// graph capture count in the graph's pool, not in the record. MetaGraphs creates such graphs: the stages run their
// own capture code (pipeline/graphed_region.h), and every pass is captured again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/tape_recorder.h"
#include "device/launch_point.h"
#include "device/memory_meter.h"
#include "replay/rank_trace.h"
#include "replay/step_trace.h"

namespace metroplex::forecast {

class TracePool final : public graph::GraphPool {
 public:
  Bytes bytes() const override { return bytes_; }
  void add(int64_t bytes);  // negative: memory is freed

 private:
  Bytes bytes_;
};

class TraceRecorder final : public device::MetaMemory::Listener, public device::Recorder, public graph::LibraryCalls {
 public:
  // block: allocation sizes are rounded up to a multiple of this many bytes.
  explicit TraceRecorder(int64_t block) : block_(block) {}

  void allocated(int64_t bytes, const void* block) override;
  void freed(int64_t bytes, const void* block) override;
  int64_t live() const { return live_; }  // bytes outside pools

  void run(device::Operation operation) override;
  void issued(const device::Operation& operation) override;
  void joins(const std::string& group, const std::string& purpose, const std::vector<int>& ranks) override {
    groups_[group] = {purpose, ranks};
  }
  // Records libtorch's operators too, while graph::TapeHooks intercept them.
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override;
  const std::map<std::string, replay::TracedGroup>& groups() const { return groups_; }
  void start();
  // Measures the CPU time of each operator in its thread.
  void time_operators();

  // Runs `work` and records the points at which it passes its turn. A partner that computes nothing receives it.
  void run_with_turns(const std::function<void()>& work);

  // Ends the current TraceStep at a gradient event of parameter `param`.
  void end_step(replay::TraceStep::End end, size_t param);
  // Assigns later events to `next`.
  void begin_region(replay::IslandTrace next);
  std::vector<replay::IslandTrace> take();

  // Between these calls, allocations belong to `pool` until they are freed.
  void enter_pool(std::shared_ptr<TracePool> pool) { pool_ = std::move(pool); }
  void leave_pool() { pool_ = nullptr; }
  bool in_pool(const at::Tensor& x) const;
  int64_t rounded(int64_t bytes) const { return (bytes + block_ - 1) / block_ * block_; }

 private:
  int call_number(const device::Operation& operation);
  void take_turn();

  int64_t block_;
  std::map<std::string, replay::TracedGroup> groups_;
  std::unordered_map<const void*, int> calls_;  // collectives in flight
  int num_calls_ = 0;
  bool timed_ = false;
  double clock_s_ = 0;  // of reading the clock
  bool on_ = false;
  bool turn_ = false;  // has passed since the last operation
  int64_t live_ = 0, net_ = 0, most_ = 0;
  replay::IslandTrace region_;
  std::vector<replay::IslandTrace> regions_;
  std::shared_ptr<TracePool> pool_;                                      // of the current capture
  std::unordered_map<const void*, std::shared_ptr<TracePool>> pool_of_;  // by block of MetaMemory
};

class MetaGraphs final : public graph::GraphDevice {
 public:
  explicit MetaGraphs(TraceRecorder& recorder) : recorder_(recorder) {}
  std::shared_ptr<graph::GraphPool> make_pool() override { return std::make_shared<TracePool>(); }
  std::unique_ptr<graph::Graph> make_graph(std::shared_ptr<graph::GraphPool> pool) override;
  device::Recorder* recorder() override { return nullptr; }
  void run_on_capture_stream(const std::function<void()>& work) override { work(); }

 private:
  TraceRecorder& recorder_;
};

}  // namespace metroplex::forecast

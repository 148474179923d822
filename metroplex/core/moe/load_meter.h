// Per-layer meters of a step: this rank's tokens per expert, and communication times. Layers write on the device; the
// counts are zeroed when a step begins (nn::Segment::collect_step_counts).
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "device/launch_point.h"
#include "moe/context.h"

namespace metroplex::moe {

class LoadMeter {
 public:
  struct Layer {
    at::Tensor counts;   // [E + 1] int64; `tokens` and `dropped` are views of it
    at::Tensor tokens;   // [E]: kept assignments of tokens to experts
    at::Tensor dropped;  // [1]: dropped assignments
    // [kReplicaNumbers] fp64, over the microbatches of the step: number of plans; number of replicas; sums of the ep
    // ranks' maximum over mean load, without and with replicas; maximum of the latter. The tensor is undefined
    // without replicas.
    at::Tensor replicas;
    double dispatch_ms = 0, combine_ms = 0;  // host clock, since reset_times()
    double replicas_ms = 0;                  // same clock: waits for replica weights
  };
  enum ReplicaNumber { kPlans, kReplicas, kBefore, kAfter, kWorstAfter, kReplicaNumbers };

  LoadMeter(int64_t num_experts, const device::Target& target) : num_experts_(num_experts), target_(target) {}
  // For forwards that count: not for evaluation, not for recomputation. experts [T, k] int64, -1: dropped.
  void count(int64_t layer, const at::Tensor& experts);
  void count_replicas(int64_t layer, const ReplicaPlan& plan);  // same condition
  // Moves assignments that count() has counted from `tokens` to `dropped`. lost [T, k] bool.
  void count_lost(int64_t layer, const at::Tensor& experts, const at::Tensor& lost);
  const at::Tensor& replicas_of(int64_t layer);
  // By global layer number; created on first use.
  Layer& layer(int64_t number);
  const std::map<int64_t, Layer>& layers() const { return layers_; }
  void reset_times();

 private:
  int64_t num_experts_;
  device::Target target_;
  std::map<int64_t, Layer> layers_;
};

// Calls `body` and adds its time in ms to `sum`, also in graph replays. `sum` may be null.
template <class Body>
void timed(const device::Target& target, double* sum, const Body& body) {
  using Clock = std::chrono::steady_clock;
  if (sum == nullptr) return body();
  const auto mark = [&](std::function<void()> host) {
    if (target.recorder != nullptr) target.recorder->mark(std::move(host));
    else host();
  };
  const auto start = std::make_shared<Clock::time_point>();
  mark([start] { *start = Clock::now(); });
  body();
  mark([start, sum] { *sum += std::chrono::duration<double, std::milli>(Clock::now() - *start).count(); });
}

}  // namespace metroplex::moe

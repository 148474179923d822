// How many tokens of this rank each expert got in a step, layer by layer, and how long they were on their way. Layers
// write, on the device; the step zeroes the counts when it begins (nn::Segment::collect_step_counts).
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "cuda/launch_point.h"
#include "moe/context.h"

namespace metroplex::moe {

class LoadMeter {
 public:
  struct Layer {
    at::Tensor counts;   // [E + 1] int64, of which the next two are parts
    at::Tensor tokens;   // [E]: assignments of tokens to experts that were kept
    at::Tensor dropped;  // [1]: assignments that were not
    // [kCloneNumbers] float64, of the step, over the microbatches: plans of clones, clones made, sums of the largest
    // over the mean of the loads of the ranks of ep without and with them, the largest of the latter. Undefined
    // without clones.
    at::Tensor clones;
    double dispatch_ms = 0, combine_ms = 0;  // on the host's clock, since reset_times()
    double clones_ms = 0;                    // likewise, of waiting for weights of clones
  };
  enum CloneNumber { kPlans, kClones, kBefore, kAfter, kWorstAfter, kCloneNumbers };

  LoadMeter(int64_t num_experts, const cuda::Target& target) : num_experts_(num_experts), target_(target) {}
  // Of a forward that counts: not of evaluation, not of a repetition. experts [T, k] int64, -1: dropped.
  void count(int64_t layer, const at::Tensor& experts);
  void count_clones(int64_t layer, const ClonePlan& plan);  // likewise
  // Moves assignments that count() has counted from `tokens` to `dropped`. lost [T, k] bool.
  void count_lost(int64_t layer, const at::Tensor& experts, const at::Tensor& lost);
  // Where count_clones() will count.
  const at::Tensor& clones_of(int64_t layer);
  // By global number; made when first asked for.
  Layer& layer(int64_t number);
  const std::map<int64_t, Layer>& layers() const { return layers_; }
  void reset_times();

 private:
  int64_t num_experts_;
  cuda::Target target_;
  std::map<int64_t, Layer> layers_;
};

// Calls `body` and adds the time it takes to `sum`, which may be null, in replays too.
template <class Body>
void timed(const cuda::Target& target, double* sum, const Body& body) {
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

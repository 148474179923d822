// Samples a rank's memory meter during training.
#pragma once

#include <algorithm>
#include <vector>

#include "device/memory_meter.h"
#include "replay/memory.h"
#include "forecast/predict.h"
#include "run/support.h"

namespace metroplex::test {

// Peak of the meter while each block runs, relative to the start of the action, and peak over the step.
class MemoryWatch {
 public:
  struct Moment {
    size_t action = 0, block = 0;
    bool backward = false;
    int64_t most = 0;
  };

  MemoryWatch(step::Assembly& assembly, device::MemoryMeter& meter) : a_(assembly), meter_(meter) {
    for (const auto& stage : assembly.model.stages) stage->add_observer("watch", around_);
    assembly.model.executor->observers().add("watch", [this](const plan::Action&, double) {
      see();
      before_ = meter_.bytes();
      ++action_;
    });
  }
  ~MemoryWatch() {
    for (const auto& stage : a_.model.stages) stage->remove_observer("watch");
    a_.model.executor->observers().remove("watch");
  }

  void begin() {
    moments.clear();
    action_ = 0;
    most_ = 0;
    start_ = before_ = meter_.bytes();
    meter_.reset_peak();
  }
  void end() { see(); }
  // Peak of the whole step; valid after the step.
  int64_t most() const { return most_ - start_; }
  std::vector<Moment> moments;

 private:
  struct SegmentObserver final : nn::StageObserver {
    explicit SegmentObserver(MemoryWatch& watch) : watch(watch) {}
    void before(const nn::RegionEvent&) override { watch.see(); }
    void after(const nn::RegionEvent& event) override {
      watch.moments.push_back({watch.action_, static_cast<size_t>(event.block), event.pass == nn::Pass::backward,
                               watch.see() - watch.before_});
    }
    MemoryWatch& watch;
  };
  int64_t see() {
    const int64_t most = meter_.peak_bytes();
    most_ = std::max(most_, most);
    meter_.reset_peak();
    return most;
  }

  step::Assembly& a_;
  device::MemoryMeter& meter_;
  SegmentObserver around_{*this};
  size_t action_ = 0;
  int64_t start_ = 0, before_ = 0, most_ = 0;
};

// Runs two steps and watches the second, which has all tensors that are allocated once.
inline void train_watched(step::Assembly& assembly, MemoryWatch& watch) {
  for (int64_t step = 0; step < 2; ++step) {
    const auto batches = make_batches(assembly, step);
    watch.begin();
    step::train_step(assembly,
                     {batches, step + 1, step * assembly.process.config.train.global_batch_size, false, {}});
    watch.end();
  }
}

// Allowed difference: the loss and its gradient, scalars of at most 8 bytes, may or may not be held when a block
// begins. An activation tensor of these models has at least 256 bytes.
constexpr int64_t kScalars = 16;

inline void expect_predicted_memory(const config::Config& config, int64_t vocab, const comm::World& world) {
  device::MemoryMeter meter;
  const auto assembly = step::assemble(config, world, vocab);
  MemoryWatch watch(*assembly, meter);
  train_watched(*assembly, watch);
  const replay::MemoryPrediction want = forecast::predict_memory({config, world.size(), world.rank(), vocab});
  ASSERT_EQ(watch.moments.size(), want.moments.size());
  for (size_t i = 0; i < want.moments.size(); ++i) {
    const MemoryWatch::Moment& got = watch.moments[i];
    const replay::ReplayMoment& wanted = want.moments[i];
    ASSERT_EQ(got.action, wanted.action);
    ASSERT_EQ(got.block, wanted.block);
    ASSERT_EQ(got.backward, wanted.backward);
    EXPECT_NEAR(got.most, wanted.most, kScalars)
        << "action " << got.action << " block " << got.block << (got.backward ? " backward" : " forward");
  }
  EXPECT_NEAR(watch.most(), forecast::step_bytes(want), kScalars);
}

}  // namespace metroplex::test

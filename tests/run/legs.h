// A run split into legs: each loads the previous leg's checkpoint, trains some steps, and saves.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "run/posix_disk.h"
#include "run/support.h"

namespace metroplex::test {

using State = std::map<std::string, at::Tensor>;

// Trains steps [from, to) from checkpoint `load` (empty: from scratch), saves to `save`, and returns the full state.
struct Leg {
  TestLayout layout;
  std::string load, save;
  int64_t from = 0, to = 0;
};

struct Outcome {
  State state;
  std::vector<double> losses, norms;
  run::LoadOutcome loaded;
};

inline Outcome run_leg(const config::Config& base, const Leg& leg) {
  config::Config config = base;
  config.checkpoint.load = leg.load;
  config.checkpoint.save = leg.save;
  config.checkpoint.save_interval = leg.save.empty() ? 0 : 1;
  config = cut(config, leg.layout);
  Outcome outcome;
  run_sharded(config, leg.layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    run::LoadOutcome loaded;
    if (!leg.load.empty()) loaded = run::load_state(*assembly, leg.load);
    std::vector<double> losses, norms;
    const int64_t batch = config.train.global_batch_size;
    run::Position at{leg.from, leg.from * batch, leg.from * batch};
    if (loaded.loaded && !config.checkpoint.finetune) at.scheduled_samples = loaded.position.scheduled_samples;
    for (; at.iteration < leg.to; ++at.iteration, at.consumed_train_samples += batch) {
      const auto result = step_at(*assembly, at.iteration, at.scheduled_samples);
      losses.push_back(result.loss);
      norms.push_back(result.grad_norm);
      (result.updated ? at.scheduled_samples : at.skipped_iterations) += result.updated ? batch : 1;
    }
    if (!leg.save.empty()) {
      const auto saved = run::save_state(*assembly, at);
      EXPECT_TRUE(saved.saved) << saved.problem;
    }
    State state = whole_state(*assembly);
    if (world.rank() == 0) outcome = {std::move(state), losses, norms, loaded};
  });
  return outcome;
}

}  // namespace metroplex::test

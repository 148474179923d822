// A run in legs: each loads what another one saved, trains some steps, and saves.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/state.h"
#include "train/support.h"

namespace metroplex::test {

using State = std::map<std::string, at::Tensor>;

// Trains steps [from, to) from what `load` has (nothing: from scratch), saves to `save`, and returns the whole state.
struct Leg {
  TestLayout layout;
  std::string load, save;
  int64_t from = 0, to = 0;
};

struct Outcome {
  State state;
  std::vector<double> losses, norms;
  train::LoadOutcome loaded;
};

inline Outcome run_leg(const config::Config& base, const Leg& leg) {
  config::Config config = base;
  config.checkpoint.load = leg.load;
  config.checkpoint.save = leg.save;
  config.checkpoint.save_interval = leg.save.empty() ? 0 : 1;
  config = cut(config, leg.layout);
  Outcome outcome;
  run_cut(config, leg.layout, [&](const comm::World& world) {
    const auto a = train::assemble(config, world, kVocab);
    train::LoadOutcome loaded;
    if (!leg.load.empty()) loaded = train::load_state(*a, leg.load);
    std::vector<double> losses, norms;
    for (int64_t step = leg.from; step < leg.to; ++step) {
      const auto result = step_at(*a, step);
      losses.push_back(result.loss);
      norms.push_back(result.grad_norm);
    }
    if (!leg.save.empty()) {
      const auto saved = train::save_state(*a, {leg.to, leg.to * config.train.global_batch_size, 0});
      EXPECT_TRUE(saved.saved) << saved.problem;
    }
    State state = whole_state(*a);
    if (world.rank() == 0) outcome = {std::move(state), losses, norms, loaded};
  });
  return outcome;
}

}  // namespace metroplex::test

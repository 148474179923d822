// Training steps of the MoE model of mixture.h, with ranks as threads, timed by the wall clock and the virtual clock.
#pragma once

#include <sched.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/core_wait.h"
#include "clock/virtual_clock.h"
#include "comm/collectives.h"
#include "comm/launch.h"
#include "config/load.h"
#include "config/validate.h"
#include "mixture.h"
#include "timing.h"
#include "step/step.h"

namespace metroplex::bench {

struct ClockedSteps {
  int ranks = 2;
  double skew = 1;  // exponent of Zipf's law; 0: even
  MixtureSizes model;
  bool replicas = false;  // exact planner, as many replica slots as local experts
  bool overlaps = true, fetched_again = false;
};

inline config::Config make_config(const ClockedSteps& steps) {
  config::Config config = mixture(steps.model, steps.ranks);
  if (steps.skew > 0) config.model.moe_router_force_skew = steps.skew;
  else config.model.moe_router_force_load_balancing = true;
  config.model.moe_enable_echo = steps.replicas;
  if (steps.replicas) {
    config.model.moe_num_echo_experts = steps.model.experts;
    config.model.moe_echo_planner = "exact";
    config.model.moe_echo_expert_dispatch_overlap = steps.overlaps;
    config.model.moe_echo_recompute_expert_dispatch = steps.fetched_again;
  }
  config::check(config, steps.ranks);
  return config::resolved(config, steps.ranks);
}

// Pins the calling thread to the n-th core of its affinity mask, if there are as many.
inline void keep_to_core(int n) {
  cpu_set_t allowed, one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed) && n-- == 0) CPU_SET(core, &one);
  }
  if (CPU_COUNT(&one) == 1) sched_setaffinity(0, sizeof one, &one);
}

struct StepTime {
  double wall_s = 0, virtual_s = 0, without_core_s = 0;
  clock::RankTime time{};
};
using StepTimes = std::vector<std::vector<StepTime>>;  // by rank and step

// Times `body` between two barriers, at which the virtual clocks of all ranks are equal.
template <class Body>
StepTime timed(const comm::World& world, clock::VirtualClock& clock, const Body& body) {
  comm::barrier(world.groups().world);
  const clock::RankTime before = clock.of(world.rank());
  const double without_core = base::seconds_without_core(), at = clock.now(world.rank());
  const auto start = Clock::now();
  body();
  comm::barrier(world.groups().world);
  return {seconds_since(start), clock.now(world.rank()) - at, base::seconds_without_core() - without_core,
          clock.of(world.rank()) - before};
}

inline StepTimes train_steps(const ClockedSteps& s, const price::LinkCost& link, int steps) {
  const config::Config config = make_config(s);
  StepTimes times(static_cast<size_t>(s.ranks));
  const auto clock = std::make_shared<clock::VirtualClock>(s.ranks, link);
  comm::run_threads(s.ranks, topology::RankGrid(s.ranks, config.parallel), {.observer = clock},
                    [&](const comm::World& world) {
                      if (s.ranks == 2) keep_to_core(world.rank());
                      auto assembly = step::assemble(config, world, config.model.vocab_size);
                      const std::vector<nn::Microbatch> batches{random_batch(s.model, world.rank())};
                      for (int64_t step = 0; step < steps + 2; ++step) {
                        const StepTime time = timed(world, *clock, [&] {
                          step::train_step(*assembly, {batches, step + 1, step * s.model.batch * s.ranks, false, {}});
                        });
                        if (step >= 2) times[static_cast<size_t>(world.rank())].push_back(time);
                      }
                    });
  return times;
}

struct Spread {
  double mean = 0, least = 0, most = 0;
};
template <class Of>
Spread over_ranks(const StepTimes& times, const Of& of) {
  Spread spread{0, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const auto& steps : times) {
    std::vector<double> own;
    for (const StepTime& step : steps) own.push_back(of(step));
    const double value = median(own);
    spread.mean += value / static_cast<double>(times.size());
    spread.least = std::min(spread.least, value);
    spread.most = std::max(spread.most, value);
  }
  return spread;
}

inline double waiting_seconds(const StepTime& step, comm::Purpose purpose) {
  double seconds = 0;
  for (const auto& [group, wait] : step.time.waits) seconds += group.second == purpose ? wait.seconds : 0;
  return seconds / step.virtual_s * 100;
}

}  // namespace metroplex::bench

// virtual_clock [steps] [latency_us] [gigabytes_per_s] [most ranks]: training steps of a small mixture of experts
// whose routing is forced (Zipf), ranks as threads. First two ranks, which have a core each: every step is timed by
// the wall clock and by the virtual clock. Then 4 to 64 ranks by the virtual clock alone: who waits how long for
// what. Without latency and bandwidth the link is what two threads of this machine have, as measured first.
#include <ATen/ATen.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/backends/virtual_clock.h"
#include "comm/collectives.h"
#include "comm/launch.h"
#include "config/load.h"
#include "config/validate.h"
#include "train/step.h"
#include "mixture.h"
#include "timing.h"

namespace {

using namespace metroplex;

struct Sizes {
  int ranks;
  double skew;
  bench::MixtureSizes model;
  bool clones = false;
};
Sizes two_ranks() { return {2, 1, {4, 256, 4, 512, 8, 2, 2048, 256, 1}}; }
Sizes many_ranks(int ranks, double skew, bool clones) {
  return {ranks, skew, {2, 128, 4, 256, 64, 2, 256, 128, 2}, clones};
}

config::Config config_of(const Sizes& s) {
  config::Config c = bench::mixture(s.model, s.ranks);
  if (s.skew > 0) c.model.moe_router_force_skew = s.skew;
  else c.model.moe_router_force_load_balancing = true;
  c.model.moe_enable_echo = s.clones;
  if (s.clones) {
    c.model.moe_num_echo_experts = s.model.experts;  // as many slots as home experts
    c.model.moe_echo_planner = "exact";
  }
  config::check(c, s.ranks);
  return config::resolved(c, s.ranks);
}

// How long the calling thread has been ready to run without a core.
double seconds_without_core() {
  std::ifstream stat("/proc/thread-self/schedstat");
  double on_core = 0, without = 0;
  stat >> on_core >> without;
  return without * 1e-9;
}

// The calling thread stays on one of the cores that it may use: the n-th, if there are as many.
void keep_to_core(int n) {
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
  comm::RankTime time{};
};
using StepTimes = std::vector<std::vector<StepTime>>;  // by rank and step

// Between two barriers, at which the virtual clocks of all ranks are equal.
template <class Body>
StepTime timed(const comm::World& world, comm::VirtualClock& clock, const Body& body) {
  comm::barrier(world.groups().world);
  const comm::RankTime before = clock.of(world.rank());
  const double without_core = seconds_without_core(), at = clock.now(world.rank());
  const auto start = bench::Clock::now();
  body();
  comm::barrier(world.groups().world);
  return {bench::seconds_since(start), clock.now(world.rank()) - at, seconds_without_core() - without_core,
          clock.of(world.rank()) - before};
}

StepTimes train_steps(const Sizes& s, const comm::LinkCost& link, int steps) {
  const config::Config config = config_of(s);
  StepTimes times(static_cast<size_t>(s.ranks));
  const auto clock = std::make_shared<comm::VirtualClock>(s.ranks, link);
  comm::run_threads(
      s.ranks, topology::RankGrid(s.ranks, config.parallel), {.clock = clock}, [&](const comm::World& world) {
        if (s.ranks == 2) keep_to_core(world.rank());
        auto assembly = train::assemble(config, world, config.model.vocab_size);
        const std::vector<nn::Microbatch> batches{bench::random_batch(s.model, world.rank())};
        for (int64_t step = 0; step < steps + 2; ++step) {
          const StepTime time = timed(world, *clock, [&] {
            train::train_step(*assembly, {batches, step + 1, step * s.model.batch * s.ranks, false, {}});
          });
          if (step >= 2) times[static_cast<size_t>(world.rank())].push_back(time);
        }
      });
  return times;
}

// What two threads have: a barrier, and an all-to-all of 8 MiB.
comm::LinkCost measured_link() {
  comm::LinkCost link;
  config::Parallel parallel;
  comm::run_threads(2, topology::RankGrid(2, parallel), {}, [&](const comm::World& world) {
    const comm::Group& all = world.groups().world;
    const at::Tensor x = at::ones({2, 1 << 20});
    std::vector<double> barriers, exchanges;
    for (int i = 0; i < 60; ++i) {
      comm::barrier(all);
      auto start = bench::Clock::now();
      comm::barrier(all);
      barriers.push_back(bench::seconds_since(start));
      start = bench::Clock::now();
      comm::all_to_all(x, {1, 1}, {1, 1}, all);
      exchanges.push_back(bench::seconds_since(start));
    }
    if (world.rank() != 0) return;
    link.latency_s = bench::median(barriers);
    link.bytes_per_s = static_cast<double>(x.nbytes()) / 2 / bench::median(exchanges);
  });
  return link;
}

// Steps in which a rank lacked a core for less than a hundredth of the time are compared apart.
void print_agreement(const char* name, const StepTimes& times) {
  std::vector<double> all, undisturbed, walls, virtuals, links;
  for (size_t step = 0; step < times[0].size(); ++step) {
    const StepTime& first = times[0][step];
    const double ratio = first.virtual_s / first.wall_s;
    all.push_back(ratio);
    walls.push_back(first.wall_s);
    virtuals.push_back(first.virtual_s);
    double link = 0;
    for (const auto& [group, wait] : first.time.waits) link += wait.link_seconds;
    links.push_back(link / first.virtual_s);
    if (std::max(first.without_core_s, times[1][step].without_core_s) < 0.01 * first.wall_s)
      undisturbed.push_back(ratio);
  }
  std::printf("| %s | %.1f | %.1f | %.3f | ", name, bench::median(walls) * 1e3, bench::median(virtuals) * 1e3,
              bench::median(all));
  if (undisturbed.empty()) std::printf("- | ");
  else std::printf("%.3f | ", bench::median(undisturbed));
  std::printf("%zu of %zu | %.1f %% |\n", undisturbed.size(), all.size(), bench::median(links) * 100);
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
    const double value = bench::median(own);
    spread.mean += value / static_cast<double>(times.size());
    spread.least = std::min(spread.least, value);
    spread.most = std::max(spread.most, value);
  }
  return spread;
}

double waited_for(const StepTime& step, comm::Purpose purpose) {
  double seconds = 0;
  for (const auto& [group, wait] : step.time.waits) seconds += group.second == purpose ? wait.seconds : 0;
  return seconds / step.virtual_s * 100;
}

void print_waits(const Sizes& s, const StepTimes& times) {
  const Spread virtual_ms = over_ranks(times, [](const StepTime& step) { return step.virtual_s * 1e3; });
  const Spread compute = over_ranks(times, [](const StepTime& step) { return step.time.compute_s * 1e3; });
  const Spread waiting =
      over_ranks(times, [](const StepTime& step) { return step.time.waiting_s() / step.virtual_s * 100; });
  const auto purpose = [&](comm::Purpose of) {
    return over_ranks(times, [&](const StepTime& step) { return waited_for(step, of); }).mean;
  };
  const Spread wall = over_ranks(times, [](const StepTime& step) { return step.wall_s * 1e3; });
  std::printf("| %d | %g%s | %.1f | %.1f | %.2f | %.0f %% | %.0f to %.0f %% | %.0f %% | %.0f %% | %.0f |\n", s.ranks,
              s.skew, s.clones ? ", clones" : "", virtual_ms.mean, compute.mean, compute.most / compute.mean,
              waiting.mean, waiting.least, waiting.most, purpose(comm::Purpose::experts),
              purpose(comm::Purpose::gradients), wall.mean);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  bench::as_metroplex_runs(argv);
  const int steps = argc > 1 ? std::max(1, std::atoi(argv[1])) : 20;
  comm::LinkCost link = measured_link();
  std::printf("Two threads of this machine: %.1f us a barrier, %.1f GB/s in an all-to-all.\n\n", link.latency_s * 1e6,
              link.bytes_per_s * 1e-9);
  std::printf("| 2 ranks, EP 2, link | wall ms | virtual ms | virtual / wall | undisturbed | steps | link |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  print_agreement("free", train_steps(two_ranks(), {}, steps));
  print_agreement("measured", train_steps(two_ranks(), link, steps));
  if (argc > 3) link = {std::atof(argv[2]) * 1e-6, std::atof(argv[3]) * 1e9};
  const int most = argc > 4 ? std::atoi(argv[4]) : 64;
  std::printf("\nWith a link of %.1f us and %.1f GB/s:\n\n", link.latency_s * 1e6, link.bytes_per_s * 1e-9);
  std::printf(
      "| ranks, EP | skew | virtual ms | compute ms | max / mean | waiting | by rank | experts | gradients | ");
  std::printf("wall ms |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (int ranks = 4; ranks <= most; ranks *= 2) {
    for (const Sizes& sizes : {many_ranks(ranks, 0, false), many_ranks(ranks, 1, false), many_ranks(ranks, 1, true)})
      print_waits(sizes, train_steps(sizes, link, std::max(3, steps / 4)));
  }
  return 0;
}

// virtual_clock [steps] [latency_us] [gigabytes_per_s] [most ranks]: training steps of a small MoE model with forced
// routing (Zipf), ranks as threads. First runs two ranks with a core each, and times every step by the wall clock and
// the virtual clock. Then runs 4 to 64 ranks by the virtual clock alone, and prints the waiting times by cause. By
// default latency and bandwidth are measured between two threads of this machine.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "clocked_steps.h"

namespace {

using namespace metroplex;

using bench::ClockedSteps;
using bench::Spread;
using bench::StepTime;
using bench::StepTimes;

ClockedSteps two_ranks() { return {2, 1, {4, 256, 4, 512, 8, 2, 2048, 256, 1}}; }
ClockedSteps many_ranks(int ranks, double skew, bool replicas) {
  return {ranks, skew, {2, 128, 4, 256, 64, 2, 256, 128, 2}, replicas};
}

// Measures a barrier and an all-to-all of 8 MiB between two threads.
price::LinkCost measured_link() {
  price::LinkCost link;
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

// Reports separately the steps in which ranks lacked a core for less than a hundredth of the time.
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

void print_waits(const ClockedSteps& steps, const StepTimes& times) {
  const Spread virtual_ms = bench::over_ranks(times, [](const StepTime& step) { return step.virtual_s * 1e3; });
  const Spread compute = bench::over_ranks(times, [](const StepTime& step) { return step.time.compute_s * 1e3; });
  const Spread waiting =
      bench::over_ranks(times, [](const StepTime& step) { return step.time.waiting_s() / step.virtual_s * 100; });
  const auto purpose = [&](comm::Purpose of) {
    return bench::over_ranks(times, [&](const StepTime& step) { return bench::waiting_seconds(step, of); }).mean;
  };
  const Spread wall = bench::over_ranks(times, [](const StepTime& step) { return step.wall_s * 1e3; });
  std::printf("| %d | %g%s | %.1f | %.1f | %.2f | %.0f %% | %.0f to %.0f %% | %.0f %% | %.0f %% | %.0f |\n",
              steps.ranks, steps.skew, steps.replicas ? ", clones" : "", virtual_ms.mean, compute.mean,
              compute.most / compute.mean, waiting.mean, waiting.least, waiting.most, purpose(comm::Purpose::experts),
              purpose(comm::Purpose::gradients), wall.mean);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  bench::use_run_settings(argv);
  const int steps = argc > 1 ? std::max(1, std::atoi(argv[1])) : 20;
  price::LinkCost link = measured_link();
  std::printf("Two threads of this machine: %.1f us a barrier, %.1f GB/s in an all-to-all.\n\n", link.latency_s * 1e6,
              link.bytes_per_s * 1e-9);
  std::printf("| 2 ranks, EP 2, link | wall ms | virtual ms | virtual / wall | undisturbed | steps | link |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  print_agreement("free", bench::train_steps(two_ranks(), {}, steps));
  print_agreement("measured", bench::train_steps(two_ranks(), link, steps));
  if (argc > 3) link = {std::atof(argv[2]) * 1e-6, std::atof(argv[3]) * 1e9};
  const int most = argc > 4 ? std::atoi(argv[4]) : 64;
  std::printf("\nWith a link of %.1f us and %.1f GB/s:\n\n", link.latency_s * 1e6, link.bytes_per_s * 1e-9);
  std::printf(
      "| ranks, EP | skew | virtual ms | compute ms | max / mean | waiting | by rank | experts | gradients | ");
  std::printf("wall ms |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (int ranks = 4; ranks <= most; ranks *= 2) {
    for (const ClockedSteps& sizes :
         {many_ranks(ranks, 0, false), many_ranks(ranks, 1, false), many_ranks(ranks, 1, true)})
      print_waits(sizes, bench::train_steps(sizes, link, std::max(3, steps / 4)));
  }
  return 0;
}

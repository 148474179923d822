// echo_plan [repetitions]: the time and quality of expert replica plans on one core. Prints Markdown.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

#include "kernels/echo_plan.h"
#include "plan/echo.h"

namespace {

using namespace metroplex;

constexpr int64_t kRowsOfRank = 65536;

// Returns rows per source rank by Zipf's law over experts in random order, with noise.
std::vector<int64_t> draw_counts(const plan::EchoSizes& sizes, double exponent, uint64_t seed) {
  std::mt19937_64 draw(seed);
  std::vector<int> place(static_cast<size_t>(sizes.experts));
  std::iota(place.begin(), place.end(), 1);
  std::shuffle(place.begin(), place.end(), draw);
  double sum = 0;
  for (const int i : place) sum += std::pow(i, -exponent);
  std::uniform_real_distribution<double> noise(0.9, 1.1);
  std::vector<int64_t> counts;
  for (int rank = 0; rank < sizes.ranks; ++rank) {
    for (const int i : place)
      counts.push_back(
          static_cast<int64_t>(static_cast<double>(kRowsOfRank) * std::pow(i, -exponent) / sum * noise(draw)));
  }
  return counts;
}

// CPU time of this thread, independent of other load on the machine.
double microseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

struct Figures {
  std::vector<double> plans, columns;
  double worst = 0;
  int replicas = 0;
};

struct Place {
  explicit Place(const plan::EchoSizes& sizes)
      : owner(static_cast<size_t>(sizes.replicas())),
        first(static_cast<size_t>(sizes.experts)),
        next(owner.size()),
        narrow_scratch(static_cast<size_t>(kernels::echo_plan_narrow_scratch(sizes))),
        ends(owner.size()),
        source_rows(static_cast<size_t>(sizes.ranks) * owner.size()),
        final_loads(static_cast<size_t>(sizes.ranks)),
        scratch(static_cast<size_t>(kernels::echo_plan_scratch(sizes))) {}
  kernels::EchoPlanPlace place() {
    return {owner.data(),       first.data(),       next.data(),    ends.data(),
            source_rows.data(), final_loads.data(), scratch.data(), narrow_scratch.data()};
  }
  std::vector<int32_t> owner, first, next, narrow_scratch;
  std::vector<int64_t> ends, source_rows, final_loads, scratch;
};

// The rows of rank 0, and the index of each row among the rows of its expert.
struct Assignments {
  Assignments(const std::vector<int64_t>& counts, const plan::EchoSizes& sizes)
      : offsets(static_cast<size_t>(sizes.experts), 0) {
    for (int expert = 0; expert < sizes.experts; ++expert) {
      for (int64_t row = 0; row < counts[static_cast<size_t>(expert)]; ++row) {
        experts.push_back(expert);
        rows.push_back(row);
      }
    }
  }
  std::vector<int64_t> experts, rows, offsets;
};

void measure(const plan::EchoSizes& sizes, const plan::EchoOptions& options, double exponent, int repetitions,
             Figures& figures) {
  Place place(sizes);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const std::vector<int64_t> counts = draw_counts(sizes, exponent, seed);
    const Assignments of_rank(counts, sizes);
    std::vector<int64_t> columns(of_rank.experts.size());
    for (int i = 0; i < repetitions; ++i) {
      double start = microseconds();
      kernels::echo_plan(counts.data(), place.place(), {sizes, options, 0});
      figures.plans.push_back(microseconds() - start);
      start = microseconds();
      kernels::echo_columns({of_rank.experts.data(), of_rank.rows.data(), of_rank.offsets.data(), place.first.data(),
                             place.next.data(), place.ends.data(), columns.data()},
                            {sizes, static_cast<int64_t>(columns.size())});
      figures.columns.push_back(microseconds() - start);
    }
    const plan::EchoPlan plan = plan_echo({counts.data(), sizes}, options);
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    figures.worst =
        std::max(figures.worst, static_cast<double>(plan.max_load()) * sizes.ranks / static_cast<double>(total));
    figures.replicas += plan.num_replicas();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 50;
  constexpr double kExponents[] = {0.3, 0.6, 0.9, 1.2};
  std::printf("Zipf %.1f to %.1f, means of 4 seeds; µs on one core; %lld rows of a rank get their columns.\n\n", 0.3,
              1.2, static_cast<long long>(kRowsOfRank));
  std::printf("| ranks x experts | slots | planner | plan, median | 99th | columns | worst load / mean | clones |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  for (const plan::EchoSizes sizes :
       {plan::EchoSizes{64, 256, 1}, {64, 256, 2}, {64, 256, 4}, {256, 512, 2}, {64, 1024, 2}}) {
    for (const auto& planner : config::kWords<config::EchoPlanner>) {
      if (planner.value == config::EchoPlanner::binpack && sizes.slots > 1) continue;
      plan::EchoOptions options;
      options.planner = planner.value;
      Figures figures;
      for (const double exponent : kExponents) measure(sizes, options, exponent, repetitions, figures);
      std::printf("| %d x %d | %d | %s | %.0f | %.0f | %.0f | %.4f | %.1f |\n", sizes.ranks, sizes.experts,
                  sizes.slots, planner.text, quantile(figures.plans, 0.5), quantile(figures.plans, 0.99),
                  quantile(figures.columns, 0.5), figures.worst, figures.replicas / 16.0);
    }
  }
}

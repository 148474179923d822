// echo_overlap [steps] [rounds] [most ranks]: the time that ranks wait for replicas of hot experts, by the virtual
// clock. Weights and gradients are awaited after sending or at first use (model.moe_echo_expert_dispatch_overlap).
// Weights are stored for backward or fetched again. Skewed routing (Zipf), 4 to 64 ranks, two links. All variants
// alternate.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "clocked_steps.h"

namespace {

using namespace metroplex;
using bench::ClockedSteps;
using bench::StepTime;
using bench::StepTimes;

struct Form {
  const char* name;
  ClockedSteps steps;
  StepTimes times{};
};

std::vector<Form> make_cases(int ranks) {
  const bench::MixtureSizes model{2, 128, 4, 256, 64, 2, 256, 128, 2};
  return {{"no clones, even load", {ranks, 0, model}},
          {"no clones", {ranks, 1, model}},
          {"waited for where sent", {ranks, 1, model, true, false}},
          {"overlap", {ranks, 1, model, true, true}},
          {"fetched again, waited for where sent", {ranks, 1, model, true, false, true}},
          {"fetched again, overlap", {ranks, 1, model, true, true, true}}};
}

double milliseconds_for(const StepTime& step, comm::Purpose purpose) {
  return bench::waiting_seconds(step, purpose) / 100 * step.virtual_s * 1e3;
}

void print(const Form& form) {
  const auto of = [&](const auto& value) { return bench::over_ranks(form.times, value); };
  const auto step = of([](const StepTime& time) { return time.virtual_s * 1e3; });
  const auto compute = of([](const StepTime& time) { return time.time.compute_s * 1e3; });
  const auto replicas = of([](const StepTime& time) { return milliseconds_for(time, comm::Purpose::replicas); });
  const auto experts = of([](const StepTime& time) { return milliseconds_for(time, comm::Purpose::experts); });
  const auto gradients = of([](const StepTime& time) { return milliseconds_for(time, comm::Purpose::gradients); });
  std::printf("| %d | %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n", form.steps.ranks, form.name, step.mean,
              compute.mean, replicas.mean, replicas.most, experts.mean, gradients.mean);
}

}  // namespace

int main(int argc, char** argv) {
  bench::use_run_settings(argv);
  const int steps = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5, rounds = argc > 2 ? std::atoi(argv[2]) : 3,
            most = argc > 3 ? std::atoi(argv[3]) : 64;
  for (const price::LinkCost& link : {price::LinkCost{2e-6, 50e9}, price::LinkCost{10e-6, 2e9}}) {
    std::printf("With a link of %.1f us and %.1f GB/s, milliseconds a step:\n\n", link.latency_s * 1e6,
                link.bytes_per_s * 1e-9);
    std::printf("| ranks, EP | clones | virtual | compute | for clones | of one rank at most | for rows | ");
    std::printf("for gradients |\n|---|---|---|---|---|---|---|---|\n");
    for (int ranks = 4; ranks <= most; ranks *= 4) {
      std::vector<Form> forms = make_cases(ranks);
      for (int round = 0; round < rounds; ++round) {
        for (Form& form : forms) {
          const StepTimes times = bench::train_steps(form.steps, link, steps);
          form.times.resize(times.size());
          for (size_t rank = 0; rank < times.size(); ++rank)
            form.times[rank].insert(form.times[rank].end(), times[rank].begin(), times[rank].end());
        }
      }
      for (const Form& form : forms) print(form);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
  return 0;
}

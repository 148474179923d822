// Synthetic row counts for comparing replica plans, one table per step, from fixed seeds. They show how planners
// differ, not how a trained router behaves.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/echo.h"

namespace metroplex::bench {

struct EchoTraceSizes {
  int ranks = 64, experts = 256, topk = 8;
  int64_t tokens = 8192;  // per rank
  int steps = 1;
};

struct EchoTrace {
  std::string name;
  plan::EchoSizes sizes;                    // without replica slots
  std::vector<std::vector<int64_t>> steps;  // each [ranks][experts]

  plan::EchoCounts counts(size_t step, int slots) const {
    return {steps[step].data(), {sizes.ranks, sizes.experts, slots}};
  }
};

enum class EchoTraceKind {
  zipf,         // the i-th expert by rows has 1 / i^value of them; shuffled positions, +-10 % per step
  scaled,       // Zipf 0.9, mixed with even rows until the largest load is value times the mean
  ultra_ep,     // ranks by 1 / i^a, experts of a rank by 1 / j^4, topk without replacement; a is fitted to an
                // imbalance of `value` (UltraEP's tests)
  drift,        // Zipf 1 with positions resampled every `value` steps, rows +-30 %
  hot_rank,     // the experts of one rank have 10 times the rows of others
  hot_experts,  // each token selects the same `value` experts, which are on different ranks
  even,         // even except for noise
  empty_ranks,  // the experts of every second rank have no rows
  few,          // fewer rows than ranks
};

struct EchoTraceForm {
  const char* name;
  EchoTraceKind kind;
  double value;
};
std::span<const EchoTraceForm> echo_trace_forms();

EchoTrace make_echo_trace(const EchoTraceForm& form, const EchoTraceSizes& sizes, uint64_t seed = 1);

}  // namespace metroplex::bench

// Made-up counts of rows on which plans of clones are compared, one table a step, from fixed seeds. They say how
// planners differ, not what a trained router does.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/echo.h"

namespace metroplex::bench {

struct EchoTraceSizes {
  int ranks = 64, experts = 256, topk = 8;
  int64_t tokens = 8192;  // of a rank
  int steps = 1;
};

struct EchoTrace {
  std::string name;
  plan::EchoSizes sizes;                    // without slots
  std::vector<std::vector<int64_t>> steps;  // each [ranks][experts]

  plan::EchoCounts counts(size_t step, int slots) const {
    return {steps[step].data(), {sizes.ranks, sizes.experts, slots}};
  }
};

enum class EchoTraceKind {
  zipf,         // the i-th expert of all by rows has 1 / i^value of them; places are shuffled, a step's rows +-10 %
  scaled,       // Zipf 0.9, mixed with even rows until the largest load is value times the mean
  ultra_ep,     // ranks by 1 / i^a, of each four experts 1 / j^4, topk without replacement; a gives value (UltraEP's
                // tests)
  drift,        // Zipf 1 whose places are drawn anew every `value` steps, rows +-30 %
  hot_rank,     // the experts of one rank have 10 times the rows of others
  hot_experts,  // each token chooses the same `value` experts, which are on different ranks
  even,         // nothing to do but noise
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

// Statistics of expert loads: quantiles over experts, and the imbalance of experts or ranks.
#pragma once

#include <cstdint>
#include <vector>

namespace metroplex::files {

// Quantiles over the tokens of each expert. p10 is the smallest count that at least a tenth of the experts do not
// exceed; p50 and p90 likewise.
struct LoadQuantiles {
  int64_t min = 0, p10 = 0, p50 = 0, p90 = 0, max = 0;
};
LoadQuantiles quantiles(std::vector<int64_t> tokens);  // requires at least one expert

// Returns maximum / mean, or 1 if the sum is 0.
double imbalance(const std::vector<int64_t>& tokens);

// Maximum / mean over several steps. Single steps may be much more uneven than their sum.
struct Imbalance {
  double together = 1;  // of the sums over the steps
  double mean = 1;      // mean over single steps
  double worst = 1;     // maximum over single steps
};
Imbalance imbalance_of_steps(
    const std::vector<std::vector<int64_t>>& steps);  // at least one step, all of equal length

// Returns, for each of `ep` ranks, the tokens of its experts [r E / ep, (r + 1) E / ep).
std::vector<int64_t> tokens_of_ranks(const std::vector<int64_t>& tokens, int64_t ep);

}  // namespace metroplex::files

// What is said of the load of a layer's experts: numbers from counts.
#pragma once

#include <cstdint>
#include <vector>

namespace metroplex::files {

// Of the tokens of each expert. p10: the smallest count that a tenth of the experts do not exceed; p50, p90 likewise.
struct LoadQuantiles {
  int64_t least = 0, p10 = 0, p50 = 0, p90 = 0, most = 0;
};
LoadQuantiles quantiles(std::vector<int64_t> tokens);  // of at least one expert

// Largest over mean; 1 where there is nothing.
double imbalance(const std::vector<int64_t>& tokens);

// Largest over mean, of several steps. The load of a step may be far more uneven than that of many together.
struct Imbalance {
  double together = 1;  // of the sums over the steps
  double mean = 1;      // of the single steps, their mean
  double worst = 1;     // of the single steps, the largest
};
Imbalance imbalance_of_steps(const std::vector<std::vector<int64_t>>& steps);  // at least one, equally long

// Of each of `ep` ranks: the tokens of its experts, [r E / ep, (r + 1) E / ep).
std::vector<int64_t> tokens_of_ranks(const std::vector<int64_t>& tokens, int64_t ep);

}  // namespace metroplex::files

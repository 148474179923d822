// Sweeps over hundreds of cases run a sampled share by default. METROPLEX_WHOLE_WALKS=1 (set by scripts/nightly.sh)
// runs all of them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

namespace metroplex::test {

inline bool runs_full_sweep() {
  const char* const whole = std::getenv("METROPLEX_WHOLE_WALKS");
  return whole != nullptr && *whole != '\0';
}

// Samples one in `share` of the cases with a fixed seed and keeps their order. Every k-th case would always have the
// same values of the innermost loop that generated the cases.
template <class T>
std::vector<T> sample_cases(const std::vector<T>& all, size_t share) {
  if (runs_full_sweep()) return all;
  std::vector<size_t> places(all.size());
  std::iota(places.begin(), places.end(), size_t{0});
  std::mt19937 draw(20250701);
  for (size_t i = places.size(); i > 1; --i) std::swap(places[i - 1], places[draw() % i]);
  places.resize((all.size() + share - 1) / share);
  std::sort(places.begin(), places.end());
  std::vector<T> some;
  for (const size_t place : places) some.push_back(all[place]);
  return some;
}

}  // namespace metroplex::test

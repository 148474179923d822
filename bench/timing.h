// Timing helpers of benchmarks, and their process settings.
#pragma once

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "apps/omp_spins.h"

namespace metroplex::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Applies the process settings of `metroplex` (GOMP_SPINCOUNT, malloc). Restarts the program if required.
inline void use_run_settings(char** argv) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
  if (apps::spin_briefly()) execv("/proc/self/exe", argv);
}

}  // namespace metroplex::bench

#include "replay/rank_trace.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace metroplex::replay {

int64_t IslandTrace::net() const {
  return std::accumulate(steps.begin(), steps.end(), int64_t{0},
                         [](int64_t sum, const TraceStep& step) { return sum + step.net; });
}

int64_t IslandTrace::most() const {
  int64_t now = 0, most = 0;
  for (const TraceStep& step : steps) {
    most = std::max(most, now + step.most);
    now += step.net;
  }
  return most;
}

int64_t TraceParam::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace metroplex::replay

// The spans of one rank for a trace file, in rows. A row becomes one or more threads of the file, so that spans of a
// thread nest: overlapping spans, such as two collectives in flight, go to separate threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/trace_events.h"

namespace metroplex::run {

enum class TraceRow { step, segments, operators, collectives };
inline constexpr const char* kTraceRows[] = {"step", "segments", "operators", "collectives"};
inline constexpr int kThreadsOfRow = 100;  // numbers of threads per row in a file

struct TraceSpan {
  using Time = std::chrono::steady_clock::time_point;
  std::string name;
  Time start, end;
  std::vector<std::pair<std::string, std::string>> arguments = {};
};

class RankSpans {
 public:
  // Returns the index of the span in its row.
  size_t add(TraceRow row, TraceSpan span);
  TraceSpan& at(TraceRow row, size_t index) { return rows_[static_cast<size_t>(row)][index]; }
  void clear();
  // Appends all spans as process `pid`. Time `origin` of this rank's clock is 0 in the file.
  void write(int pid, TraceSpan::Time origin, base::TraceEvents& events) const;

 private:
  std::vector<TraceSpan> rows_[std::size(kTraceRows)];
};

// Returns for each span the number of the first thread in which it nests with earlier spans. Longer spans come first
// among spans with equal start.
std::vector<int> assign_threads(const std::vector<TraceSpan>& spans);

}  // namespace metroplex::run

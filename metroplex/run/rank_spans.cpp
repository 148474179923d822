#include "run/rank_spans.h"

#include <algorithm>
#include <numeric>

namespace metroplex::run {

size_t RankSpans::add(TraceRow row, TraceSpan span) {
  std::vector<TraceSpan>& spans = rows_[static_cast<size_t>(row)];
  spans.push_back(std::move(span));
  return spans.size() - 1;
}

void RankSpans::clear() {
  for (std::vector<TraceSpan>& row : rows_) row.clear();
}

std::vector<int> assign_threads(const std::vector<TraceSpan>& spans) {
  std::vector<size_t> order(spans.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t left, size_t right) {
    return std::pair(spans[left].start, spans[right].end) < std::pair(spans[right].start, spans[left].end);
  });
  std::vector<int> threads(spans.size());
  std::vector<std::vector<TraceSpan::Time>> open;  // per thread: ends of the spans around the current time
  for (const size_t i : order) {
    const TraceSpan& span = spans[i];
    size_t thread = 0;
    for (; thread < open.size(); ++thread) {
      std::vector<TraceSpan::Time>& ends = open[thread];
      while (!ends.empty() && ends.back() <= span.start) ends.pop_back();
      if (ends.empty() || span.end <= ends.back()) break;
    }
    if (thread == open.size()) open.emplace_back();
    open[thread].push_back(span.end);
    threads[i] = static_cast<int>(thread);
  }
  return threads;
}

void RankSpans::write(int pid, TraceSpan::Time origin, base::TraceEvents& events) const {
  const auto seconds = [origin](TraceSpan::Time time) {
    return std::chrono::duration<double>(time - origin).count();
  };
  for (size_t row = 0; row < std::size(kTraceRows); ++row) {
    const std::vector<TraceSpan>& spans = rows_[row];
    const std::vector<int> threads = assign_threads(spans);
    const int first = static_cast<int>(row) * kThreadsOfRow;
    const int count = threads.empty() ? 0 : *std::max_element(threads.begin(), threads.end()) + 1;
    for (int thread = 0; thread < count; ++thread)
      events.name_thread(pid, first + thread,
                         thread == 0 ? kTraceRows[row] : kTraceRows[row] + (" " + std::to_string(thread + 1)));
    for (size_t i = 0; i < spans.size(); ++i) {
      const TraceSpan& span = spans[i];
      events.span(pid, first + threads[i], span.name, kTraceRows[row], seconds(span.start),
                  seconds(span.end) - seconds(span.start), span.arguments);
    }
  }
}

}  // namespace metroplex::run

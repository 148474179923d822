// Checks of a trace file in Chrome's JSON format, as Perfetto requires it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace metroplex::test {

struct CheckedSpan {
  std::string name;
  int64_t start = 0, end = 0;  // ns
  nlohmann::json arguments;
};

struct CheckedTrace {
  std::map<int64_t, std::string> processes;
  std::map<std::pair<int64_t, int64_t>, std::string> threads;             // by pid and tid
  std::map<std::pair<int64_t, int64_t>, std::vector<CheckedSpan>> spans;  // in the order of the file
  std::vector<std::string> problems;

  // The spans of a rank in the threads whose names begin with `row`.
  std::vector<CheckedSpan> row(int64_t pid, const std::string& row) const {
    std::vector<CheckedSpan> all;
    for (const auto& [thread, name] : threads) {
      if (thread.first != pid || !name.starts_with(row)) continue;
      const auto found = spans.find(thread);
      if (found != spans.end()) all.insert(all.end(), found->second.begin(), found->second.end());
    }
    return all;
  }
};

// A span of a thread is inside an earlier one or begins after its end.
inline void check_nesting(std::vector<CheckedSpan> spans, std::vector<std::string>& problems) {
  std::stable_sort(spans.begin(), spans.end(), [](const CheckedSpan& left, const CheckedSpan& right) {
    return std::pair(left.start, -left.end) < std::pair(right.start, -right.end);
  });
  std::vector<CheckedSpan> open;
  for (const CheckedSpan& span : spans) {
    while (!open.empty() && open.back().end <= span.start) open.pop_back();
    if (!open.empty() && span.end > open.back().end)
      problems.push_back(span.name + " ends after " + open.back().name + ", in which it begins");
    open.push_back(span);
  }
}

inline void check_event(const nlohmann::json& event, CheckedTrace& trace,
                        std::map<std::string, std::vector<std::string>>& flows) {
  const auto problem = [&](const std::string& text) { trace.problems.push_back(text + ": " + event.dump()); };
  const auto nanoseconds = [](const nlohmann::json& value) {
    return static_cast<int64_t>(std::llround(value.get<double>() * 1000));
  };
  if (!event.contains("ph") || !event.contains("pid") || !event.at("pid").is_number_integer() ||
      !event.contains("tid") || !event.at("tid").is_number_integer() || !event.contains("name"))
    return problem("an event needs ph, name, pid and tid");
  const std::string phase = event.at("ph");
  const std::pair<int64_t, int64_t> thread{event.at("pid"), event.at("tid")};
  if (phase == "M") {
    if (event.at("name") == "process_name") trace.processes[thread.first] = event.at("args").at("name");
    if (event.at("name") == "thread_name") trace.threads[thread] = event.at("args").at("name");
    return;
  }
  if (!event.contains("ts") || !event.at("ts").is_number()) return problem("an event needs ts");
  if (phase == "X") {
    if (!event.contains("dur") || !event.at("dur").is_number() || event.at("dur").get<double>() < 0)
      return problem("a span needs dur >= 0");
    const int64_t start = nanoseconds(event.at("ts"));
    trace.spans[thread].push_back({event.at("name"), start, start + nanoseconds(event.at("dur")),
                                   event.value("args", nlohmann::json::object())});
  } else if (phase == "s" || phase == "f") {
    flows[event.at("id").dump()].push_back(phase);
  } else if (phase != "C") {
    problem("an unknown phase");
  }
}

inline CheckedTrace check_trace(const std::string& text) {
  CheckedTrace trace;
  const nlohmann::json file = nlohmann::json::parse(text, nullptr, false);
  if (file.is_discarded() || !file.contains("traceEvents")) {
    trace.problems.push_back("not JSON with traceEvents");
    return trace;
  }
  std::map<std::string, std::vector<std::string>> flows;
  for (const nlohmann::json& event : file.at("traceEvents")) check_event(event, trace, flows);
  for (const auto& [thread, spans] : trace.spans) {
    check_nesting(spans, trace.problems);
    if (!trace.processes.contains(thread.first) || !trace.threads.contains(thread))
      trace.problems.push_back("thread " + std::to_string(thread.second) + " has no name");
  }
  for (const auto& [id, phases] : flows) {
    if (phases != std::vector<std::string>{"s", "f"}) trace.problems.push_back("flow " + id + " has no two ends");
  }
  return trace;
}

}  // namespace metroplex::test

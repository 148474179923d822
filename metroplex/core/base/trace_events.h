// Events of a trace file in Chrome's JSON format, which chrome://tracing and ui.perfetto.dev show. A process of the
// file is a rank, and a thread is a row of spans. Spans of one thread must nest. Times are in seconds since any
// common origin; the file has them in microseconds with nanosecond digits.
// Format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace metroplex::base {

class TraceEvents {
 public:
  // Processes are sorted by pid, threads by tid.
  void name_process(int pid, const std::string& name);
  void name_thread(int pid, int tid, const std::string& name);
  // `arguments` are strings that the viewer shows for a selected span.
  void span(int pid, int tid, const std::string& name, const std::string& category, double start_s, double seconds,
            const std::vector<std::pair<std::string, std::string>>& arguments = {});
  // A graph of one or more values over time.
  void counter(int pid, const std::string& name, double at_s,
               const std::vector<std::pair<std::string, double>>& values);
  // An arrow from the span of a thread that contains from_s to the span that contains to_s.
  void flow(int from_pid, int from_tid, double from_s, int to_pid, int to_tid, double to_s, const std::string& name);

  bool empty() const { return events_.empty(); }
  // The events without the frame of the file, for append() in another process. Only rank `pid` may add flows from
  // process `pid`, so that their identifiers differ.
  const std::string& events() const { return events_; }
  void append(const std::string& events);
  // The whole file.
  std::string json() const;

 private:
  void add(const std::string& event);

  std::string events_;
  int64_t flows_ = 0;
};

}  // namespace metroplex::base

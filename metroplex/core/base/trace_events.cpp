#include "base/trace_events.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace metroplex::base {
namespace {

std::string quote(const std::string& text) {
  std::string out = "\"";
  for (const char byte : text) {
    if (byte == '"' || byte == '\\') {
      out += {'\\', byte};
    } else if (static_cast<unsigned char>(byte) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(byte));
      out += escaped;
    } else {
      out += byte;
    }
  }
  return out + '"';
}

int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

std::string microseconds(int64_t nanoseconds) {
  char buffer[40];
  const std::lldiv_t parts = std::lldiv(std::llabs(nanoseconds), 1000);
  std::snprintf(buffer, sizeof buffer, "%s%lld.%03lld", nanoseconds < 0 ? "-" : "", parts.quot, parts.rem);
  return buffer;
}

// JSON has no NaN or Inf.
std::string number(double value) {
  if (!std::isfinite(value)) return "0";
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

std::string location(int pid, int tid) {
  return ", \"pid\": " + std::to_string(pid) + ", \"tid\": " + std::to_string(tid);
}

std::string metadata(int pid, int tid, const char* kind, const char* key, const std::string& value) {
  return std::string("{\"ph\": \"M\", \"name\": \"") + kind + "\"" + location(pid, tid) + ", \"args\": {\"" + key +
         "\": " + value + "}}";
}

}  // namespace

void TraceEvents::add(const std::string& event) {
  if (!events_.empty()) events_ += ",\n";
  events_ += event;
}

void TraceEvents::append(const std::string& events) {
  if (!events.empty()) add(events);
}

void TraceEvents::name_process(int pid, const std::string& name) {
  add(metadata(pid, 0, "process_name", "name", quote(name)));
  add(metadata(pid, 0, "process_sort_index", "sort_index", std::to_string(pid)));
}

void TraceEvents::name_thread(int pid, int tid, const std::string& name) {
  add(metadata(pid, tid, "thread_name", "name", quote(name)));
  add(metadata(pid, tid, "thread_sort_index", "sort_index", std::to_string(tid)));
}

void TraceEvents::span(int pid, int tid, const std::string& name, const std::string& category, double start_s,
                       double seconds, const std::vector<std::pair<std::string, std::string>>& arguments) {
  // The end is rounded, not the duration, so that rounding keeps spans nested.
  const int64_t start = nanoseconds(start_s), end = nanoseconds(start_s + seconds);
  std::string event = "{\"ph\": \"X\", \"name\": " + quote(name) + ", \"cat\": " + quote(category) +
                      ", \"ts\": " + microseconds(start) +
                      ", \"dur\": " + microseconds(std::max(start, end) - start) + location(pid, tid);
  std::string list;
  for (const auto& [key, value] : arguments) list += (list.empty() ? "" : ", ") + quote(key) + ": " + quote(value);
  add(event + (list.empty() ? "}" : ", \"args\": {" + list + "}}"));
}

void TraceEvents::counter(int pid, const std::string& name, double at_s,
                          const std::vector<std::pair<std::string, double>>& values) {
  std::string list;
  for (const auto& [key, value] : values) list += (list.empty() ? "" : ", ") + quote(key) + ": " + number(value);
  add("{\"ph\": \"C\", \"name\": " + quote(name) + ", \"ts\": " + microseconds(nanoseconds(at_s)) + location(pid, 0) +
      ", \"args\": {" + list + "}}");
}

void TraceEvents::flow(int from_pid, int from_tid, double from_s, int to_pid, int to_tid, double to_s,
                       const std::string& name) {
  const std::string id = quote(std::to_string(from_pid) + "." + std::to_string(++flows_));
  const auto half = [&](const char* phase, int pid, int tid, double at_s) {
    add(std::string("{\"ph\": \"") + phase + "\", \"name\": " + quote(name) + ", \"cat\": \"flow\", \"id\": " + id +
        ", \"ts\": " + microseconds(nanoseconds(at_s)) + location(pid, tid) + "}");
  };
  half("s", from_pid, from_tid, from_s);
  half("f\", \"bp\": \"e", to_pid, to_tid, to_s);
}

std::string TraceEvents::json() const {
  return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" + events_ + "\n]}\n";
}

}  // namespace metroplex::base

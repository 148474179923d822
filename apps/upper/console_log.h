// The log of a command: information on stdout unless quiet, warnings on stderr, and a progress bar that log lines do
// not disturb.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <mutex>
#include <string>

#include "base/log.h"
#include "base/utf8.h"
#include "upper/stop_signal.h"

namespace metroplex::apps {

class ConsoleLog final : public base::Log {
 public:
  // Draws the bar on stderr, and only if that is a terminal.
  explicit ConsoleLog(bool progress, bool quiet = false)
      : progress_(progress && !quiet && isatty(STDERR_FILENO)), quiet_(quiet) {}
  ~ConsoleLog() override { clear(); }

  void info(const std::string& line) override {
    if (!quiet_) write(stdout, line);
  }
  void warn(const std::string& line) override { write(stderr, "warning: " + line); }
  void progress(int64_t done, int64_t all) {
    if (!progress_ || all <= 0) return;
    const std::lock_guard lock(mutex_);
    constexpr int64_t kWidth = 40;
    const int64_t filled = std::min(kWidth, done * kWidth / all);
    std::fprintf(stderr, "\r[%s%s] %ld/%ld", std::string(filled, '=').c_str(),
                 std::string(kWidth - filled, ' ').c_str(), static_cast<long>(done), static_cast<long>(all));
    std::fflush(stderr);
    drawn_ = true;
  }

 private:
  void write(FILE* stream, const std::string& line) {
    const std::lock_guard lock(mutex_);
    if (!takes_a_line(stream)) return;
    clear();
    std::fprintf(stream, "%s\n", base::escape_controls(line).c_str());
    std::fflush(stream);
  }
  // Returns false if the run must stop and no process reads the full pipe.
  bool takes_a_line(FILE* stream) {
    constexpr int kTickMs = 100, kStoppingMs = 1000;
    pollfd out{fileno(stream), POLLOUT, 0};
    for (int ready = 0; (ready = ::poll(&out, 1, stuck_ ? 0 : kTickMs)) <= 0;) {
      if (ready < 0 && errno != EINTR) return true;
      if (!stop_requested()) continue;
      stuck_ = stuck_ || ::poll(&out, 1, kStoppingMs) <= 0;
      if (stuck_) return false;
    }
    return true;
  }
  void clear() {
    if (!drawn_) return;
    std::fprintf(stderr, "\r\033[K");
    std::fflush(stderr);
    drawn_ = false;
  }

  bool progress_, quiet_;
  bool drawn_ = false;
  bool stuck_ = false;
  std::mutex mutex_;
};

}  // namespace metroplex::apps

// The log of a command: information to stdout unless it is to be quiet, warnings to stderr, and a progress bar that
// keeps out of the way.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <string>

#include "base/log.h"

namespace metroplex::apps {

class ConsoleLog final : public base::Log {
 public:
  // The bar is drawn on stderr, and only when that is a terminal.
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
    clear();
    std::fprintf(stream, "%s\n", line.c_str());
    std::fflush(stream);
  }
  void clear() {
    if (!drawn_) return;
    std::fprintf(stderr, "\r\033[K");
    std::fflush(stderr);
    drawn_ = false;
  }

  bool progress_, quiet_;
  bool drawn_ = false;
  std::mutex mutex_;
};

}  // namespace metroplex::apps

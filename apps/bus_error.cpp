#include "bus_error.h"

#include <csignal>
#include <cstdint>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include "program.h"

namespace metroplex::apps {
namespace {

// Async-signal-safe: no heap allocation and no locks of the standard library.
class Maps {
 public:
  Maps() : fd_(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}

  // Reads the next line without its end, truncated to `size`; returns false at the end of the file.
  bool next(char* line, size_t size) {
    size_t length = 0;
    for (char c = 0; take(c);) {
      if (c == '\n') {
        line[length] = 0;
        return true;
      }
      if (length + 1 < size) line[length++] = c;
    }
    return false;
  }

 private:
  bool take(char& c) {
    if (at_ == end_) {
      const ssize_t got = fd_ < 0 ? 0 : ::read(fd_, buffer_, sizeof buffer_);
      if (got <= 0) return false;
      at_ = 0;
      end_ = static_cast<size_t>(got);
    }
    c = buffer_[at_++];
    return true;
  }

  int fd_;
  char buffer_[1024];
  size_t at_ = 0, end_ = 0;
};

uintptr_t hexadecimal(const char*& text) {
  uintptr_t value = 0;
  for (;; ++text) {
    const char c = *text;
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return value;
    value = value * 16 + static_cast<uintptr_t>(digit);
  }
}

// Parses "begin-end perms offset dev inode   /path". Returns the path if the mapping contains `address`, else null.
const char* path_at(uintptr_t address, const char* line) {
  const uintptr_t begin = hexadecimal(line);
  ++line;
  const uintptr_t end = hexadecimal(line);
  return begin <= address && address < end ? std::strchr(line, '/') : nullptr;
}

void say(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void on_bus_error(int signal, siginfo_t* info, void*) {
  Maps maps;
  char line[4096 + 128];
  while (maps.next(line, sizeof line)) {
    const char* const path = path_at(reinterpret_cast<uintptr_t>(info->si_addr), line);
    if (path == nullptr) continue;
    say("metroplex: [files] '");
    say(path);
    say("' can no longer be read: the file shrank while it was in use, or its disk failed. Write a new file and "
        "rename it over the old one instead of changing it in place\n");
    ::_exit(kExitData);
  }
  ::signal(signal, SIG_DFL);  // no mapped file: the default action for the repeated fault ends the process
}

}  // namespace

void explain_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace metroplex::apps

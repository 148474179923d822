#include "base/core_wait.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

namespace metroplex::base {

// The file has two numbers of ns: on a core, and ready without one. A stream would take three times as long.
double seconds_without_core() {
  const int file = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[128];
  const ssize_t size = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (size <= 0) return 0;
  text[size] = 0;
  char* second = nullptr;
  std::strtoull(text, &second, 10);
  return static_cast<double>(std::strtoull(second, nullptr, 10)) * 1e-9;
}

}  // namespace metroplex::base

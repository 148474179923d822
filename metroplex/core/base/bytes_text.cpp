#include "base/bytes_text.h"

#include <cstdio>

namespace metroplex::base {

std::string bytes_text(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit < 5; ++unit) bytes /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
  return text;
}

}  // namespace metroplex::base

#include "step/timers.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "comm/collectives.h"

namespace metroplex::step {

std::string Timers::report(int64_t iterations, const comm::Group& world) {
  std::ostringstream mine;
  mine.precision(9);
  for (const auto& [name, watch] : watches_) {
    const int64_t times = watch.occasional ? watch.times : iterations;
    mine << name << '\n' << watch.seconds * 1000 / static_cast<double>(std::max<int64_t>(times, 1)) << '\n';
  }
  watches_.clear();
  std::map<std::string, std::pair<double, double>> bounds;
  for (const std::string& text : comm::gather_strings(mine.str(), world)) {
    std::istringstream lines(text);
    std::string name, value;
    while (std::getline(lines, name) && std::getline(lines, value)) {
      const double ms = std::stod(value);
      const auto [entry, inserted] = bounds.try_emplace(name, ms, ms);
      entry->second = {std::min(entry->second.first, ms), std::max(entry->second.second, ms)};
    }
  }
  if (!world.first()) return "";
  std::string out = "(min, max) time across ranks (ms):";
  for (const auto& [name, range] : bounds) {
    char line[160];
    std::snprintf(line, sizeof line, "\n    %s %s: (%.2f, %.2f)", name.c_str(),
                  std::string(std::max<size_t>(1, 40 - std::min<size_t>(39, name.size())), '.').c_str(), range.first,
                  range.second);
    out += line;
  }
  return out;
}

}  // namespace metroplex::step

#include "run/clock_offset.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "comm/collectives.h"

namespace metroplex::run {

static constexpr int kBarriers = 8;

ClockOffset clock_offset(const std::vector<BarrierTimes>& first, const std::vector<BarrierTimes>& mine) {
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < mine.size(); ++i) {
    least = std::max(least, mine[i].before_ns - first[i].after_ns);
    most = std::min(most, mine[i].after_ns - first[i].before_ns);
  }
  const int64_t middle = least + (most - least) / 2;
  const int64_t ns = least <= 0 && 0 <= most ? 0 : middle;
  return {ns, std::max(most - ns, ns - least)};
}

ClockOffset measure_clock_offset(const comm::Group& world) {
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  std::vector<BarrierTimes> mine(kBarriers);
  for (BarrierTimes& times : mine) {
    times.before_ns = now();
    comm::barrier(world);
    times.after_ns = now();
  }
  std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(BarrierTimes));
  bytes = comm::broadcast_string(bytes, world);
  std::vector<BarrierTimes> first(kBarriers);
  std::memcpy(first.data(), bytes.data(), bytes.size());
  return world.first() ? ClockOffset{} : clock_offset(first, mine);
}

}  // namespace metroplex::run

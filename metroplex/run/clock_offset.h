// Offsets between the clocks of ranks, for a trace of several machines. Each rank reads its clock before and after
// some barriers. No rank leaves a barrier before every rank has entered it, which bounds the offset from both sides.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "comm/group.h"

namespace metroplex::run {

struct BarrierTimes {
  int64_t before_ns = 0, after_ns = 0;
};
// This rank's clock minus the first rank's clock; the true value differs by at most `error_ns`. 0 if 0 is possible:
// ranks of one machine share a clock.
struct ClockOffset {
  int64_t ns = 0, error_ns = 0;
};
// Both lists have the times of the same barriers, at least one.
ClockOffset clock_offset(const std::vector<BarrierTimes>& first, const std::vector<BarrierTimes>& mine);

// Reads steady_clock around barriers of `world`. Collective.
ClockOffset measure_clock_offset(const comm::Group& world);

}  // namespace metroplex::run

// The planner of clones as a kernel of one warp.
#pragma once

#include "plan/echo_lanes.h"

namespace metroplex::kernels_on_host {

void echo_plan_in_a_warp(const plan::EchoLaneShape& shape, const plan::EchoLaneMemory& memory);

}  // namespace metroplex::kernels_on_host

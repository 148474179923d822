#include "kernels_on_host/echo_plan.h"

#include "cuda/kernels/launch.h"
#include "plan/echo_warp.h"

namespace metroplex::kernels_on_host {
namespace {

__global__ void echo_plan_kernel(plan::EchoLaneShape shape, plan::EchoLaneMemory memory) {
  const plan::EchoWarp lanes;
  plan::EchoLaneProgram<plan::EchoWarp>(lanes, shape, memory).plan();
}

}  // namespace

void echo_plan_in_a_warp(const plan::EchoLaneShape& shape, const plan::EchoLaneMemory& memory) {
  cuda::kernels::launch_kernel("echo_plan", echo_plan_kernel, cuda::kernels::Grid{1, 32, 0, nullptr}, shape, memory);
}

}  // namespace metroplex::kernels_on_host

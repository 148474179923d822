// Decides which GPUs the device code of a build supports, by CUDA's compatibility rules. Code for sm_XY runs on X.Z
// with Z >= Y; code for sm_XYa on X.Y only. The driver compiles PTX of compute_XY for all later GPUs, and PTX of
// compute_XYa for X.Y only.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace metroplex::device {

// `built`: entries of CMAKE_CUDA_ARCHITECTURES, separated by spaces, commas or semicolons: "80-real", "90a-real",
// "90-virtual", "100" (both), "100f-real" (family: same as sm_100, for 10.Z). Unknown entries support no GPU.
bool architectures_run_on(std::string_view built, int compute_capability);

// Converts nvcc's __CUDA_ARCH_LIST__ to the same format; 800 is sm_80.
std::string real_architectures(std::initializer_list<int> of_nvcc);

// Returns the architecture to build for a GPU, "90a-real" for 90. Empty if the GPU has no bf16 tensor cores
// (unsupported).
std::string architecture_for(int compute_capability);

}  // namespace metroplex::device

// Which GPUs the device code of a build runs on, by CUDA's rules of compatibility: code for sm_XY runs on X.Z with Z
// not below Y; code for sm_XYa on X.Y alone; PTX of compute_XY is compiled by the driver for all that came later, and
// that of compute_XYa for X.Y alone.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace metroplex::cuda {

// `built`: as CMAKE_CUDA_ARCHITECTURES spells them, between spaces, commas or semicolons: "80-real", "90a-real",
// "90-virtual", "100" (both), "100f-real" (of a family: as sm_100, for 10.Z). What it does not know runs nowhere.
bool architectures_run_on(std::string_view built, int compute_capability);

// Spelt so, of nvcc's __CUDA_ARCH_LIST__: 800 is sm_80.
std::string real_architectures(std::initializer_list<int> of_nvcc);

// What to build, with tensor cores that multiply bf16: "90a-real" for 90. Empty: no build of ours runs there.
std::string architecture_for(int compute_capability);

}  // namespace metroplex::cuda

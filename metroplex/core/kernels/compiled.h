// The device code that this program contains.
#pragma once

#include <string>

namespace metroplex::kernels {

// Returns whether this program contains device code. It does if nvcc compiled the .cu files; otherwise no_nvcc.cpp
// replaces them.
bool compiled();
// Returns the compiled architectures as in CMAKE_CUDA_ARCHITECTURES, separated by commas; empty without device code.
std::string architectures();
// Returns whether the device code supports a compute capability (90 for sm_90), by the rules of
// device/architectures.h.
bool compiled_for(int compute_capability);

}  // namespace metroplex::kernels

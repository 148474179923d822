// Whether this program holds device code: it does where nvcc built the .cu files, and no_nvcc.cpp stands in for them
// otherwise.
#pragma once

namespace metroplex::cuda::kernels {

bool compiled();
// For a GPU of this compute capability, 90 for sm_90: code for sm_90a runs on no other.
bool compiled_for(int compute_capability);

}  // namespace metroplex::cuda::kernels

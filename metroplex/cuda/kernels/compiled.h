// Whether this program holds device code: it does where nvcc built the .cu files, and no_nvcc.cpp stands in for them
// otherwise.
#pragma once

namespace metroplex::cuda::kernels {

bool compiled();

}  // namespace metroplex::cuda::kernels

// What the machine has, and what this build has for it. Every question is safe on a machine with neither GPU nor
// driver, and in a build without CUDA.
#pragma once

#include <cstdint>
#include <string>

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda {

int device_count();        // 0 where there is no GPU, no driver, or no CUDA in this build
int compute_capability();  // of the first GPU, 90 for sm_90, asked for once; 0 where there is none
int64_t total_memory();    // of the first GPU, in bytes, whoever uses it; 0 where there is none. Makes no context

// The others throw base::Error("cuda", ...) where device_count() is 0.
CUstream_st* current_stream();  // the calling thread's
void set_device(int index);     // of the calling thread
void synchronize();             // waits for all that was enqueued on the calling thread's GPU

// What libtorch's allocator has taken of the calling thread's GPU at most, for all threads of the process: blocks
// that tensors asked for, and memory that it keeps for later ones besides.
struct AllocatorPeak {
  int64_t allocated_bytes = 0, reserved_bytes = 0;
};
AllocatorPeak allocator_peak();

}  // namespace metroplex::cuda

namespace metroplex::cuda::kernels {

// Whether this program holds device code: it does where nvcc built the .cu files, and no_nvcc.cpp stands in for them
// otherwise.
bool compiled();
// As CMAKE_CUDA_ARCHITECTURES spells them, between commas; empty: there is no device code.
std::string architectures();
// For a GPU of this compute capability, 90 for sm_90, by the rules of cuda/architectures.h.
bool compiled_for(int compute_capability);

}  // namespace metroplex::cuda::kernels

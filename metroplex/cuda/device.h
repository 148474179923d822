// What the machine has. Every question is safe on a machine with neither GPU nor driver, and in a build without CUDA.
#pragma once

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda {

int device_count();             // 0 where there is no GPU, no driver, or no CUDA in this build
CUstream_st* current_stream();  // the calling thread's; base::Error("cuda", ...) where device_count() is 0

}  // namespace metroplex::cuda

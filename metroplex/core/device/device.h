// Properties of the machine's GPUs and of this build's device code. All queries are safe on a machine without GPU or
// driver, and in a build without CUDA.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace metroplex::device {

int device_count();        // 0 without GPU, driver, or CUDA support in this build
int compute_capability();  // first GPU, 90 for sm_90, cached; 0 without GPU
int64_t total_memory();    // first GPU, in bytes, used and free; 0 without GPU. Creates no CUDA context

// These functions throw base::Error("cuda", ...) if device_count() is 0.
CUstream_st* current_stream();  // for the calling thread
void set_device(int index);     // for the calling thread
void synchronize();             // waits for all work enqueued on the calling thread's GPU

// Peak memory of libtorch's allocator on the calling thread's GPU, over all threads of the process. `allocated`
// counts blocks of tensors; `reserved` also counts cached blocks.
struct AllocatorPeak {
  int64_t allocated_bytes = 0, reserved_bytes = 0;
};
AllocatorPeak allocator_peak();

}  // namespace metroplex::device

#include "cuda/device.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "base/error.h"

namespace metroplex::cuda {

int device_count() { return c10::cuda::device_count(); }

CUstream_st* current_stream() {
  MPX_CHECK(device_count() > 0, "cuda", "no GPU was found; run on a machine with one, or without CUDA");
  return c10::cuda::getCurrentCUDAStream().stream();
}

}  // namespace metroplex::cuda

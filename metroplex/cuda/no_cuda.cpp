#include "base/error.h"
#include "cuda/device.h"

namespace metroplex::cuda {

int device_count() { return 0; }

CUstream_st* current_stream() {
  base::throw_error("cuda", "this program was built without CUDA; build with --cuda to use a GPU");
}

}  // namespace metroplex::cuda

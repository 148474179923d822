#include "device/device.h"

#include "base/error.h"
#include "device/code_product.h"

namespace metroplex::device {
namespace {

[[noreturn]] void no_cuda() {
  base::throw_error("cuda", "this program was built without CUDA; build with --cuda to use a GPU");
}

}  // namespace

int device_count() { return 0; }
int compute_capability() { return 0; }
int64_t total_memory() { return 0; }

CUstream_st* current_stream() { no_cuda(); }
void set_device(int) { no_cuda(); }
void synchronize() { no_cuda(); }
AllocatorPeak allocator_peak() { no_cuda(); }
bool multiply_codes(const CodeProduct&) { no_cuda(); }

}  // namespace metroplex::device

// Stands in for all .cu files where there is no nvcc.
#include "base/error.h"
#include "cuda/kernels/compiled.h"
#include "cuda/kernels/dropout.h"

namespace metroplex::cuda::kernels {
namespace {

[[noreturn]] void no_kernel(const char* name) {
  base::throw_error("cuda", base::concat("kernel ", name,
                                         " is not in this program: it was built without nvcc; install the CUDA 13.0 "
                                         "toolkit and build again"));
}

}  // namespace

bool compiled() { return false; }

template <class T>
void bias_dropout_add_cuda(const T*, const T*, const T*, T*, const DropoutShape&, CUstream_st*) {
  no_kernel("bias_dropout_add");
}

#define MPX_INSTANTIATE(T) \
  template void bias_dropout_add_cuda<T>(const T*, const T*, const T*, T*, const DropoutShape&, CUstream_st*)
MPX_INSTANTIATE(float);
MPX_INSTANTIATE(double);

}  // namespace metroplex::cuda::kernels

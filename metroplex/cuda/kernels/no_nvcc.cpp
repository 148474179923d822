// Stands in for all .cu files where there is no nvcc.
#include "base/error.h"
#include "cuda/kernels/compiled.h"
#include "cuda/kernels/dropout.h"
#include "cuda/kernels/optimizer_step.h"
#include "cuda/kernels/optimizer_sums.h"

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

void gradient_sums_cuda(const void*, Number, int64_t, const GradientSumsPlace&, CUstream_st*) {
  no_kernel("gradient_sums");
}
void adam_step_cuda(const OptimizerRange&, const AdamHyper&, CUstream_st*) { no_kernel("adam_step"); }
void sgd_step_cuda(const OptimizerRange&, const SgdHyper&, CUstream_st*) { no_kernel("sgd_step"); }
void lion_step_cuda(const OptimizerRange&, const LionHyper&, CUstream_st*) { no_kernel("lion_step"); }

}  // namespace metroplex::cuda::kernels

#include "cuda/kernels/compiled.h"

namespace metroplex::cuda::kernels {

bool compiled() { return true; }

}  // namespace metroplex::cuda::kernels

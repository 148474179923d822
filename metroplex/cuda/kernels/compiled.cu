#include "cuda/device.h"

#include <initializer_list>

namespace metroplex::cuda::kernels {

bool compiled() { return true; }

bool compiled_for(int compute_capability) {
  for (const int architecture : {__CUDA_ARCH_LIST__}) {
    if (architecture == 10 * compute_capability) return true;
  }
  return false;
}

}  // namespace metroplex::cuda::kernels

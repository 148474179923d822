#include <string>

#include "cuda/architectures.h"
#include "cuda/device.h"

namespace metroplex::cuda::kernels {

bool compiled() { return true; }

// Values such as native and all name no architecture; then nvcc's list is used, which lacks PTX.
std::string architectures() {
  const std::string named = METROPLEX_CUDA_ARCHITECTURES;
  if (!named.empty() && named.front() >= '0' && named.front() <= '9') return named;
  return real_architectures({__CUDA_ARCH_LIST__});
}

bool compiled_for(int compute_capability) { return architectures_run_on(architectures(), compute_capability); }

}  // namespace metroplex::cuda::kernels

#include <string>

#include "device/architectures.h"
#include "kernels/compiled.h"

namespace metroplex::kernels {

bool compiled() { return true; }

// Values such as `native` and `all` name no architecture. Then nvcc's list is used, which lacks PTX.
std::string architectures() {
  const std::string named = METROPLEX_CUDA_ARCHITECTURES;
  if (!named.empty() && named.front() >= '0' && named.front() <= '9') return named;
  return device::real_architectures({__CUDA_ARCH_LIST__});
}

bool compiled_for(int compute_capability) {
  return device::architectures_run_on(architectures(), compute_capability);
}

}  // namespace metroplex::kernels

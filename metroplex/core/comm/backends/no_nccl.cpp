#include "comm/backends/nccl.h"

#include "base/error.h"

namespace metroplex::comm {

std::shared_ptr<NcclContext> make_nccl_context(GlooContext&, int, std::chrono::milliseconds) {
  throw base::Error(
      "comm",
      "this program was built without CUDA, so nccl is not available; use the backend gloo or threads, or "
      "build with CUDA");
}

}  // namespace metroplex::comm

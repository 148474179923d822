#include "comm/collectives.h"

#include <ATen/core/Tensor.h>

#include "base/error.h"

namespace metroplex::comm {

Handle batch_p2p(std::vector<P2pOp> ops, const Group& group) {
  if (ops.empty() && group.size() == 1) return Handle();
  for (P2pOp& op : ops) {
    MPX_ASSERT(op.tensor.defined() && op.tensor.is_contiguous(), "p2p requires contiguous tensors");
    op.tensor = op.tensor.detach();
  }
  return Handle(group.backend().batch_p2p(std::move(ops)));
}

}  // namespace metroplex::comm

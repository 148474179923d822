// Point to point between the ranks of a group: the transfers of one call are issued together. pipeline/executor makes
// of it what its table says. Forward and backward of a pipeline use channels of their own, so two ranks that are each
// other's both neighbours never mix them up.
#pragma once

#include <vector>

#include "comm/collectives.h"
#include "comm/group.h"

namespace metroplex::comm {

// Tensors must be contiguous. An empty batch is nothing.
[[nodiscard]] Handle batch_p2p(std::vector<P2pOp> ops, const Group& group);

inline constexpr int kForwardChannel = 0;
inline constexpr int kBackwardChannel = 1;

}  // namespace metroplex::comm

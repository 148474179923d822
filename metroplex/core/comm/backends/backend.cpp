#include "comm/backends/backend.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace metroplex::comm {

PendingPtr GroupBackend::gather(at::Tensor out, at::Tensor in, int index, int size) {
  if (index != 0) return batch_p2p({{true, in, 0, 0}});
  const at::NoGradGuard no_grad;
  const at::Tensor rows = out.view({size, -1});
  rows[0].copy_(in.view(-1));
  std::vector<P2pOp> receives;
  for (int member = 1; member < size; ++member) receives.push_back({false, rows[member], member, 0});
  return batch_p2p(std::move(receives));
}

}  // namespace metroplex::comm

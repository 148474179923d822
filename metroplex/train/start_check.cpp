#include "train/start_check.h"

#include <ATen/ops/empty.h>

#include "comm/collectives.h"

namespace metroplex::train {

StartVerdict check_together(const Fit& mine, const comm::World& world, const std::function<std::string()>& refusal,
                            const std::function<void(const std::string&)>& say) {
  at::Tensor most = at::empty({2}, at::kLong);
  most[0] = mine.fits() ? -world.size() : -world.rank();
  most[1] = mine.need;
  comm::all_reduce(most, world.groups().world, comm::ReduceOp::max);
  StartVerdict verdict{most[1].item<int64_t>(), static_cast<int>(-most[0].item<int64_t>())};
  if (verdict.misfit == world.size()) return {verdict.need, -1};
  if (verdict.misfit == world.rank()) say(refusal());
  comm::barrier(world.groups().world);
  return verdict;
}

}  // namespace metroplex::train

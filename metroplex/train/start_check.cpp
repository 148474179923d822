#include "train/start_check.h"

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "comm/collectives.h"

namespace metroplex::train {

int64_t check_together(const Fit& mine, const comm::World& world, config::FitCheck check,
                       const std::function<std::string()>& refusal,
                       const std::function<void(const std::string&)>& say) {
  at::Tensor most = at::empty({2}, at::kLong);
  most[0] = mine.fits() ? -world.size() : -world.rank();
  most[1] = mine.need;
  comm::all_reduce(most, world.groups().world, comm::ReduceOp::max);
  const int64_t first = -most[0].item<int64_t>();
  if (first == world.size()) return most[1].item<int64_t>();
  if (first == world.rank()) say(refusal());
  comm::barrier(world.groups().world);  // a rank that ended earlier would have its launcher end the one that speaks
  MPX_CHECK(check == config::FitCheck::warn, "config", "this run cannot fit: rank ", first,
            " says why; memory.check_fit = warn starts it all the same");
  return most[1].item<int64_t>();
}

}  // namespace metroplex::train

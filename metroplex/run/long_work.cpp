#include "run/long_work.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

#include "comm/collectives.h"

namespace metroplex::run {
namespace {

// Interval between two collectives, far below any collective timeout.
constexpr std::chrono::milliseconds kMinPoll{2}, kMaxPoll{200};

}  // namespace

bool all_ranks_true(bool mine, const comm::World& world) {
  const at::Tensor against = at::full({1}, mine ? 0.0 : 1.0, at::TensorOptions(at::kDouble)).to(world.device());
  comm::all_reduce(against, world.groups().world);
  return against.item<double>() == 0;
}

void run_with_peers(const std::function<void()>& work, const comm::World& world) {
  std::packaged_task<void()> task(work);
  const std::shared_future<void> result = task.get_future();
  std::thread(std::move(task)).detach();
  for (auto interval = kMinPoll;; interval = std::min(2 * interval, kMaxPoll)) {
    const bool mine = result.wait_for(interval) == std::future_status::ready;
    if (mine) result.get();  // rethrows the exception of the work
    if (all_ranks_true(mine, world)) return;
  }
}

}  // namespace metroplex::run

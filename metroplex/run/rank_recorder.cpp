#include "run/rank_recorder.h"

#include <algorithm>

namespace metroplex::run {

static int64_t sum_bytes(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

int64_t group_bytes(const device::Operation& operation) {
  if (operation.name == "wait") return 0;
  const int64_t reads = sum_bytes(operation.reads), writes = sum_bytes(operation.writes);
  return operation.name == "batch_p2p" ? reads + writes : std::max(reads, writes);
}

void RankRecorder::joins(const std::string& group, const std::string& /*purpose*/, const std::vector<int>& ranks) {
  groups_[group].ranks = ranks;
}

void RankRecorder::run(device::Operation operation) {
  const bool is_group_call = !operation.group.empty();
  if (!is_group_call && !observer_) return operation.run();
  const Clock::time_point start = Clock::now();
  operation.run();
  const Clock::time_point end = Clock::now();
  if (is_group_call) {
    const double seconds = std::chrono::duration<double>(end - start).count();
    seconds_ += seconds;
    groups_[operation.group].seconds += seconds;
    bytes_ += group_bytes(operation);
  }
  if (observer_) observer_(operation, start, end);
}

}  // namespace metroplex::run

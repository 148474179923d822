#include "checkpoint/retention.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace metroplex::checkpoint {

std::vector<CheckpointName> to_remove(std::vector<CheckpointName> names, const CheckpointName& latest,
                                      const Retention& retention) {
  if (retention.keep_last <= 0 && retention.retain_interval <= 0) return {};
  std::sort(names.begin(), names.end(), [](const CheckpointName& a, const CheckpointName& b) {
    return std::tie(a.iteration, a.attempt) > std::tie(b.iteration, b.attempt);
  });
  const auto newest = static_cast<size_t>(std::max<int64_t>(retention.keep_last, 1));
  std::vector<CheckpointName> removed;
  for (size_t i = newest; i < names.size(); ++i) {
    const bool for_good = retention.retain_interval > 0 && names[i].iteration % retention.retain_interval == 0;
    if (!for_good && names[i] != latest) removed.push_back(names[i]);
  }
  return removed;
}

std::vector<std::string> apply_retention(files::FileSystem& disk, const std::string& root,
                                         const Retention& retention) {
  std::vector<std::string> problems;
  try {
    const Latest latest = read_latest(disk, root);
    if (!latest.name) return problems;  // nobody knows which one is in use
    for (const CheckpointName& name : to_remove(list_checkpoints(disk, root), *latest.name, retention)) {
      try {
        remove_checkpoint(disk, root, name);
      } catch (const base::Error& error) { problems.push_back(error.what()); }
    }
  } catch (const base::Error& error) { problems.push_back(error.what()); }
  return problems;
}

}  // namespace metroplex::checkpoint

#include "checkpoint/directory.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::checkpoint {

size_t kept_of_past(const Retention& retention) {
  if (retention.keep_last <= 0 && retention.retain_interval <= 0) return 0;
  return static_cast<size_t>(std::max<int64_t>(retention.keep_last, 1));
}

std::vector<CheckpointName> to_remove(const History& history, const Retention& retention) {
  const size_t kept = kept_of_past(retention);
  std::vector<CheckpointName> removed;
  if (kept == 0) return removed;
  const auto add = [&](const CheckpointName& name) {
    const bool for_good = retention.retain_interval > 0 && name.iteration % retention.retain_interval == 0;
    if (!for_good) removed.push_back(name);
  };
  for (const CheckpointName& name : history.left) add(name);
  for (size_t i = kept; i < history.past.size(); ++i) add(history.past[i]);
  for (const CheckpointName& name : history.older) add(name);
  return removed;
}

RetentionResult apply_retention(files::FileSystem& disk, const std::string& root, const Retention& retention) {
  RetentionResult result;
  const size_t kept = kept_of_past(retention);
  if (kept == 0) return result;
  try {
    const Latest latest = read_latest(disk, root);
    if (!latest.name) return result;  // the checkpoint in use is unknown
    const auto names = list_checkpoints(disk, root);
    if (std::find(names.begin(), names.end(), *latest.name) == names.end()) return result;
    const History history = read_history(disk, root, names, *latest.name, kept);
    for (const CheckpointName& name : to_remove(history, retention)) {
      try {
        remove_checkpoint(disk, root, name);
        if (std::find(history.left.begin(), history.left.end(), name) != history.left.end())
          result.removed_branch.push_back(name);
      } catch (const base::Error& error) { result.problems.push_back(error.what()); }
    }
  } catch (const base::Error& error) { result.problems.push_back(error.what()); }
  return result;
}

}  // namespace metroplex::checkpoint

#include "checkpoint/directory.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "files/manifest.h"

namespace metroplex::checkpoint {
namespace {

using files::join_path;

// Returns nothing if the manifest has no parent or cannot be read.
std::optional<std::string> read_parent(files::FileSystem& disk, const std::string& root, const CheckpointName& name) {
  const std::string path = join_path(join_path(root, to_string(name)), files::kManifestName);
  try {
    return files::parse_manifest(disk.map(path).text(), path).parent;
  } catch (const base::Error&) { return std::nullopt; }
}

// One step from a checkpoint to its parent. Remaining checkpoints at or above iteration `bound` are on other
// branches.
struct Step {
  std::optional<CheckpointName> next;
  int64_t bound = 0;
};

// `others` is sorted newest first.
Step step_from(const CheckpointName& from, const std::optional<std::string>& parent,
               const std::vector<CheckpointName>& others) {
  if (parent && parent->empty()) return {};
  const auto named = parent ? parse_name(*parent) : std::nullopt;
  if (named && std::find(others.begin(), others.end(), *named) != others.end()) return {named, named->iteration + 1};
  // The parent was removed or is unknown: the remaining ancestors have lower iterations.
  const int64_t bound = named ? std::min(named->iteration + 1, from.iteration) : from.iteration;
  for (const CheckpointName& other : others) {
    if (other.iteration < bound) return {other, bound};
  }
  return {std::nullopt, bound};
}

}  // namespace

History read_history(files::FileSystem& disk, const std::string& root, std::vector<CheckpointName> names,
                     const CheckpointName& latest, size_t most) {
  std::sort(names.begin(), names.end(), [](const CheckpointName& a, const CheckpointName& b) {
    return std::tie(a.iteration, a.attempt) > std::tie(b.iteration, b.attempt);
  });
  History history;
  std::optional<CheckpointName> next = latest;
  int64_t bound = 0;
  while (next && history.past.size() < most) {
    history.past.push_back(*next);
    std::erase(names, *next);
    const Step step = step_from(*next, read_parent(disk, root, *next), names);
    next = step.next;
    bound = step.bound;
  }
  for (const CheckpointName& name : names)
    (name.iteration >= bound && name != next ? history.left : history.older).push_back(name);
  return history;
}

}  // namespace metroplex::checkpoint

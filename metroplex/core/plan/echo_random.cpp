// Random replicas, for tests of their execution.
#include "plan/echo_parts.h"

#include "base/philox.h"

namespace metroplex::plan {

void echo_random(const EchoCounts& counts, EchoTask task) {
  const EchoSizes sizes = task.sizes;
  EchoFill& fill = task.work.best;
  echo_empty(task, fill);
  uint64_t key = task.options.seed + 1;
  const int64_t n = int64_t{sizes.ranks} * sizes.experts;
  for (int64_t i = 0; i < n; ++i) key = (key ^ static_cast<uint64_t>(counts.rows[i])) * 0x9E3779B97F4A7C15u;
  std::vector<int64_t>& left = task.work.column;
  left.assign(task.work.expert_rows.begin(), task.work.expert_rows.end());
  for (int replica = 0; replica < sizes.replicas(); ++replica) {
    const base::PhiloxBlock block = base::philox4x32(key, static_cast<uint64_t>(replica), 0);
    const auto expert = static_cast<int32_t>(block[0] % static_cast<uint32_t>(sizes.experts));
    const int rank = sizes.rank_of_replica(replica);
    const auto slots = fill.owner.begin() + rank * sizes.slots;
    if (sizes.home(expert) == rank ||
        std::find(slots, fill.owner.begin() + replica, expert) != fill.owner.begin() + replica)
      continue;
    // Moves between one and two fifths of the rows that the owner still has.
    int64_t rest = 0, &at_home = left[static_cast<size_t>(expert)];
    const int64_t rows = echo_share(at_home, int64_t{1} << 32 | block[1], int64_t{5} << 32, rest);
    if (rows == 0) continue;
    at_home -= rows;
    fill.owner[static_cast<size_t>(replica)] = expert;
    fill.rows[static_cast<size_t>(replica)] = rows;
  }
}

}  // namespace metroplex::plan

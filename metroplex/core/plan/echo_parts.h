// Shared declarations of the ECHO planners. Each planner writes owners and rows to EchoWorkspace::best.
#pragma once

#include <algorithm>
#include <span>

#include "plan/echo.h"
#include "plan/echo_numbers.h"

namespace metroplex::plan {

using EchoSpan = std::span<const int64_t>;

// Arguments of plan_echo; the workspace holds the sums of the counts.
struct EchoTask {
  EchoSizes sizes;
  const EchoOptions& options;
  EchoWorkspace& work;

  int64_t mean() const { return work.total / sizes.ranks; }  // rounded down
  int node(int rank) const { return options.ranks_per_node > 0 ? rank / options.ranks_per_node : 0; }
};

void echo_greedy(EchoTask task);
void echo_binpack(EchoTask task);
void echo_capfill(EchoTask task);
void echo_exact(EchoTask task);
void echo_random(const EchoCounts& counts, EchoTask task);
void echo_split(const EchoCounts& counts, EchoTask task, EchoPlan& plan);

// Resets `fill`: no slot is taken and all rows are at their owners.
void echo_empty(EchoTask task, EchoFill& fill);

// Computes the rows that experts can give away (`spill`) and that ranks can accept (`spare`), up to the mean.
void echo_spills(EchoTask task);

// Returns the minimum number of a replica's `of_replica` rows from a source rank with `of_rank` of the expert's
// `of_all` rows.
inline int64_t echo_breadth(int64_t of_rank, int64_t of_all, int64_t of_replica, bool float32) {
  int64_t rest = 0;
  if (!float32) return echo_share(of_rank, of_replica, of_all, rest);
  const float share = static_cast<float>(of_rank) / static_cast<float>(of_all);
  return static_cast<int64_t>(share * static_cast<float>(of_replica));
}

// Lays chunks and buckets end to end on one line. Calls visit(chunk, bucket, rows) for each overlapping pair, in
// bucket order.
template <class Visit>
void echo_overlap(EchoSpan chunks, EchoSpan buckets, const Visit& visit) {
  size_t chunk = 0;
  int64_t rest = chunks.empty() ? 0 : chunks[0];
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    for (int64_t room = buckets[bucket]; room > 0 && chunk < chunks.size();) {
      const int64_t rows = std::min(room, rest);
      if (rows > 0) visit(static_cast<int>(chunk), static_cast<int>(bucket), rows);
      room -= rows;
      rest -= rows;
      if (rest == 0 && ++chunk < chunks.size()) rest = chunks[chunk];
    }
  }
}

// Bin packing over queues of sizes. Places chunks (remaining rows in `rest`) into the buckets, both sorted largest
// first. Each bucket takes one chunk: the oldest of the first non-empty queue. `next` [chunks] is scratch.
template <class Visit>
void echo_pack(std::span<int64_t> rest, EchoSpan buckets, int64_t mean, int queues, std::span<int32_t> next,
               const Visit& visit) {
  constexpr int kMost = 64;
  const int last = std::min(queues, kMost) - 1;
  const int64_t width = std::max<int64_t>(1, mean / last);
  int32_t head[kMost], tail[kMost];
  std::fill_n(head, kMost, -1);
  const auto push = [&](int32_t chunk) {
    const int64_t rows = rest[static_cast<size_t>(chunk)];
    if (rows <= 0) return;
    const int queue = rows >= mean ? 0 : static_cast<int>(std::min<int64_t>((mean - rows) / width + 1, last));
    next[static_cast<size_t>(chunk)] = -1;
    if (head[queue] < 0) head[queue] = chunk;
    else next[static_cast<size_t>(tail[queue])] = chunk;
    tail[queue] = chunk;
  };
  for (size_t chunk = 0; chunk < rest.size(); ++chunk) push(static_cast<int32_t>(chunk));
  for (size_t bucket = 0; bucket < buckets.size() && buckets[bucket] > 0; ++bucket) {
    const int32_t* const first = std::find_if(head, head + last + 1, [](int32_t chunk) { return chunk >= 0; });
    if (first == head + last + 1) return;
    const int32_t chunk = *first;
    head[first - head] = next[static_cast<size_t>(chunk)];
    const int64_t rows = std::min(rest[static_cast<size_t>(chunk)], buckets[bucket]);
    rest[static_cast<size_t>(chunk)] -= rows;
    visit(chunk, static_cast<int>(bucket), rows);
    push(chunk);
  }
}

}  // namespace metroplex::plan

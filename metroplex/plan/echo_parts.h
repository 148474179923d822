// What the files of the planner of clones share: each planner leaves owners and rows in EchoWorkspace::best.
#pragma once

#include <algorithm>
#include <span>

#include "plan/echo.h"
#include "plan/echo_numbers.h"

namespace metroplex::plan {

using EchoSpan = std::span<const int64_t>;

// Of plan_echo's arguments, with the sums of the counts in the workspace.
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

// No slot taken, all rows at home.
void echo_empty(EchoTask task, EchoFill& fill);

// Rows that experts give away and ranks have room for, up to the mean, in `spill` and `spare`.
void echo_spills(EchoTask task);

// Of `of_all` rows of an expert `of_rank` are of one source rank: so many of a clone's it gives in any case.
inline int64_t echo_breadth(int64_t of_rank, int64_t of_all, int64_t of_clone, bool float32) {
  int64_t rest = 0;
  if (!float32) return echo_share(of_rank, of_clone, of_all, rest);
  const float share = static_cast<float>(of_rank) / static_cast<float>(of_all);
  return static_cast<int64_t>(share * static_cast<float>(of_clone));
}

// Chunks and buckets laid end to end on one line: visit(chunk, bucket, rows) for each two that overlap, in the order
// of the buckets.
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

// Bin packing over queues of sizes: `rest` of the chunks, largest first, are placed into the buckets, largest first,
// one chunk a bucket: the oldest of the first queue that holds one. `next` [chunks] is scratch.
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

// Naive implementations of the replica planners: full matrices, stable sorts, every cap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "plan/echo.h"

namespace metroplex::plan::echo_naive {

struct Owners {
  std::vector<int32_t> owner;
  std::vector<int64_t> rows;
};

struct Sums {
  explicit Sums(const EchoCounts& counts)
      : sizes(counts.sizes), expert(size(sizes.experts)), load(size(sizes.ranks)) {
    for (int e = 0; e < sizes.experts; ++e) {
      for (int r = 0; r < sizes.ranks; ++r) expert[size(e)] += counts.at(r, e);
      load[size(sizes.home(e))] += expert[size(e)];
      total += expert[size(e)];
    }
  }
  static size_t size(int i) { return static_cast<size_t>(i); }
  Owners none() const {
    return {std::vector<int32_t>(size(sizes.replicas()), -1), std::vector<int64_t>(size(sizes.replicas()))};
  }
  EchoSizes sizes;
  std::vector<int64_t> expert, load;
  int64_t total = 0;
};

inline std::vector<int> indices(int count) {
  std::vector<int> result(static_cast<size_t>(count));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

template <class Key>
std::vector<int> sorted(std::vector<int> values, const Key& key) {
  std::stable_sort(values.begin(), values.end(), [&](int a, int b) { return key(a) < key(b); });
  return values;
}

// Rows that each expert gives away, those of small experts last; free capacity of each rank.
inline std::pair<std::vector<int64_t>, std::vector<int64_t>> spills(const Sums& sums) {
  std::vector<int64_t> spill(sums.expert.size()), spare(sums.load.size());
  const int64_t mean = sums.total / sums.sizes.ranks;
  for (size_t g = 0; g < spare.size(); ++g) {
    spare[g] = std::max<int64_t>(0, mean - sums.load[g]);
    std::vector<int> experts = indices(sums.sizes.experts);
    std::erase_if(experts, [&](int e) { return sums.sizes.home(e) != static_cast<int>(g); });
    int64_t cumulated = 0;
    for (const int e : sorted(experts, [&](int i) { return sums.expert[static_cast<size_t>(i)]; })) {
      const int64_t n = sums.expert[static_cast<size_t>(e)];
      spill[static_cast<size_t>(e)] =
          std::max<int64_t>(0, cumulated + n - mean) - std::max<int64_t>(0, cumulated - mean);
      cumulated += n;
    }
  }
  return {spill, spare};
}

inline Owners greedy(const EchoCounts& counts) {
  const Sums sums(counts);
  const auto [spill, spare] = spills(sums);
  const auto chunks =
      sorted(indices(sums.sizes.experts), [&, &s = spill](int e) { return -s[static_cast<size_t>(e)]; });
  const auto buckets =
      sorted(indices(sums.sizes.ranks), [&, &s = spare](int g) { return -s[static_cast<size_t>(g)]; });
  Owners result = sums.none();
  int64_t bucket_start = 0;
  for (const int g : buckets) {
    const int64_t bucket_end = bucket_start + spare[static_cast<size_t>(g)];
    std::vector<std::pair<int64_t, int>> pieces;  // minus rows, expert
    int64_t start = 0;
    for (const int e : chunks) {
      const int64_t end = start + spill[static_cast<size_t>(e)];
      const int64_t rows = std::min(end, bucket_end) - std::max(start, bucket_start);
      if (rows > 0) pieces.push_back({-rows, e});
      start = end;
    }
    std::stable_sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t s = 0; s < pieces.size() && s < static_cast<size_t>(sums.sizes.slots); ++s) {
      const size_t k = static_cast<size_t>(g * sums.sizes.slots) + s;
      result.owner[k] = pieces[s].second;
      result.rows[k] = -pieces[s].first;
    }
    bucket_start = bucket_end;
  }
  return result;
}

// Takes the first remainder of the first queue that is not empty.
inline Owners binpack(const EchoCounts& counts) {
  const Sums sums(counts);
  auto [rest, spare] = spills(sums);
  const int64_t mean = sums.total / sums.sizes.ranks, width = std::max<int64_t>(1, mean / 7);
  std::vector<std::vector<int>> queues(8);
  const auto enter = [&, &r = rest](int e) {
    const int64_t rows = r[static_cast<size_t>(e)];
    if (rows > 0)
      queues[rows >= mean ? 0 : static_cast<size_t>(std::min<int64_t>((mean - rows) / width + 1, 7))].push_back(e);
  };
  for (const int e :
       sorted(indices(sums.sizes.experts), [&, &r = rest](int i) { return -r[static_cast<size_t>(i)]; }))
    enter(e);
  Owners result = sums.none();
  for (const int g :
       sorted(indices(sums.sizes.ranks), [&, &s = spare](int i) { return -s[static_cast<size_t>(i)]; })) {
    const auto queue = std::find_if(queues.begin(), queues.end(), [](const auto& q) { return !q.empty(); });
    if (queue == queues.end() || spare[static_cast<size_t>(g)] == 0) break;
    const int e = queue->front();
    queue->erase(queue->begin());
    const int64_t rows = std::min(rest[static_cast<size_t>(e)], spare[static_cast<size_t>(g)]);
    result.owner[static_cast<size_t>(g)] = e;
    result.rows[static_cast<size_t>(g)] = rows;
    rest[static_cast<size_t>(e)] -= rows;
    enter(e);
  }
  return result;
}

inline Owners capfill(const EchoCounts& counts, int64_t eps_bp) {
  const Sums sums(counts);
  const EchoSizes sizes = sums.sizes;
  const int64_t mean = (sums.total + sizes.ranks - 1) / sizes.ranks;
  const int64_t most = *std::max_element(sums.load.begin(), sums.load.end());
  std::vector<int64_t> caps;
  for (const int64_t b :
       {0,    25,   50,   75,   100,  125,  150,  175,  200,  250,   315,   397,   500,   630,   794,   1000,
        1260, 1588, 2001, 2521, 3177, 4003, 5044, 6355, 8008, 10089, 12713, 16018, 20183, 25430, 32042, 40373})
    caps.push_back(std::min(most, mean + static_cast<int64_t>(static_cast<__int128_t>(mean) * b / 10000)));
  std::sort(caps.begin(), caps.end());
  caps.erase(std::unique(caps.begin(), caps.end()), caps.end());
  Owners best;
  bool any = false;
  std::tuple<int64_t, int64_t, int64_t> best_key;
  for (const int64_t cap : caps) {
    for (const bool small_first : {false, true}) {
      std::vector<int64_t> surplus, room, left = sums.expert, load = sums.load;
      for (const int64_t l : load)
        surplus.push_back(std::max<int64_t>(0, l - cap)), room.push_back(std::max<int64_t>(0, cap - l));
      Owners fill = sums.none();
      int64_t replicas = 0;
      for (const int r : sorted(indices(sizes.ranks), [&, room](int g) { return -room[static_cast<size_t>(g)]; })) {
        for (int slot = 0; slot < sizes.slots && room[static_cast<size_t>(r)] > 0; ++slot) {
          int64_t& rest = room[static_cast<size_t>(r)];
          std::vector<std::tuple<int64_t, int, int>> largest, nearest;  // minus offer or surplus, sender, expert
          for (int g = 0; g < sizes.ranks; ++g) {
            if (surplus[static_cast<size_t>(g)] == 0) continue;
            int hot = g * sizes.home_experts();
            for (int e = hot; e < (g + 1) * sizes.home_experts(); ++e) {
              if (left[static_cast<size_t>(e)] > left[static_cast<size_t>(hot)]) hot = e;
            }
            largest.push_back({-std::min(surplus[static_cast<size_t>(g)], left[static_cast<size_t>(hot)]), g, hot});
            nearest.push_back({surplus[static_cast<size_t>(g)], g, hot});
          }
          if (largest.empty()) break;
          auto [key, g, e] = *std::min_element(largest.begin(), largest.end());
          if (small_first && sizes.slots - slot >= 2) {
            const auto [s, near_g, near_e] = *std::min_element(nearest.begin(), nearest.end());
            if (std::min(s, left[static_cast<size_t>(near_e)]) < rest) g = near_g, e = near_e;
          }
          const int64_t rows = std::min({surplus[static_cast<size_t>(g)], left[static_cast<size_t>(e)], rest});
          fill.owner[static_cast<size_t>(r * sizes.slots + slot)] = e;
          fill.rows[static_cast<size_t>(r * sizes.slots + slot)] = rows;
          surplus[static_cast<size_t>(g)] -= rows, left[static_cast<size_t>(e)] -= rows, rest -= rows;
          load[static_cast<size_t>(g)] -= rows, load[static_cast<size_t>(r)] += rows, ++replicas;
        }
      }
      const int64_t maximum = *std::max_element(load.begin(), load.end());
      const int64_t enough = mean + static_cast<int64_t>(static_cast<__int128_t>(mean) * eps_bp / 10000);
      const std::tuple key{std::max(maximum, enough), replicas, maximum};
      if (!any || key < best_key) best = fill, best_key = key;
      any = true;
    }
  }
  return best;
}

// Nothing if the slots do not suffice for equal loads.
inline std::optional<Owners> exact(const EchoCounts& counts) {
  const Sums sums(counts);
  const EchoSizes sizes = sums.sizes;
  std::vector<int64_t> over = sums.load, left = sums.expert;  // rows above the cap
  for (int64_t& rows : over) rows -= sums.total / sizes.ranks;
  const auto at = [](auto& values, int i) -> auto& { return values[static_cast<size_t>(i)]; };
  std::vector<int> most = sorted(indices(sizes.ranks), [&](int g) { return std::tuple(-at(sums.load, g), -g); });
  most.resize(static_cast<size_t>(sums.total % sizes.ranks));
  for (const int g : most) --at(over, g);
  Owners result = sums.none();
  std::vector<bool> visited(over.size());
  while (true) {
    const int r =
        sorted(indices(sizes.ranks), [&](int g) { return visited[static_cast<size_t>(g)] ? 1 : at(over, g); })[0];
    if (visited[static_cast<size_t>(r)] || at(over, r) >= 0) break;
    visited[static_cast<size_t>(r)] = true;
    for (int slot = 0; slot < sizes.slots && at(over, r) < 0; ++slot) {
      std::vector<int> donors = indices(sizes.experts);  // the hottest of each rank above its cap
      std::erase_if(donors, [&](int e) { return at(over, sizes.home(e)) <= 0; });
      donors = sorted(donors, [&](int e) {
        return std::tuple(-std::min(at(left, e), -at(over, r)), -at(over, sizes.home(e)), sizes.home(e), -at(left, e),
                          e);
      });
      if (donors.empty()) break;
      const int home = sizes.home(donors[0]);
      int e = home * sizes.home_experts();
      for (int i = e; i < (home + 1) * sizes.home_experts(); ++i) e = at(left, i) > at(left, e) ? i : e;
      const int64_t rows = std::min(at(left, e), -at(over, r));
      at(result.owner, r * sizes.slots + slot) = e;
      at(result.rows, r * sizes.slots + slot) = rows;
      at(left, e) -= rows, at(over, home) -= rows, at(over, r) += rows;
    }
  }
  if (std::any_of(over.begin(), over.end(), [](int64_t rows) { return rows > 0; })) return std::nullopt;
  return result;
}

// Rows of each source rank to each replica: the replica's own rank first, the rest by largest remainder.
inline std::vector<int64_t> local_first(const EchoCounts& counts, const Owners& plan) {
  const EchoSizes sizes = counts.sizes;
  std::vector<int64_t> from(static_cast<size_t>(sizes.ranks * sizes.replicas())),
      left(counts.rows, counts.rows + sizes.ranks * sizes.experts);
  const auto sent = [&](int r, int k) -> int64_t& { return from[static_cast<size_t>(r * sizes.replicas() + k)]; };
  const auto home = [&](int r, int e) -> int64_t& { return left[static_cast<size_t>(r * sizes.experts + e)]; };
  for (int k = 0; k < sizes.replicas(); ++k) {
    const int32_t e = plan.owner[static_cast<size_t>(k)];
    if (e < 0) continue;
    const int g = sizes.rank_of_replica(k);
    sent(g, k) = std::min(plan.rows[static_cast<size_t>(k)], home(g, e));
    home(g, e) -= sent(g, k);
  }
  for (int k = 0; k < sizes.replicas(); ++k) {
    const int32_t e = plan.owner[static_cast<size_t>(k)];
    if (e < 0) continue;
    int64_t rest = plan.rows[static_cast<size_t>(k)] - sent(sizes.rank_of_replica(k), k), all = 0, missing = rest;
    if (rest == 0) continue;
    for (int r = 0; r < sizes.ranks; ++r) all += home(r, e);
    std::vector<int64_t> remainder;
    for (int r = 0; r < sizes.ranks; ++r) {
      const auto product = static_cast<__int128_t>(home(r, e)) * rest;
      const int64_t share = static_cast<int64_t>(product / all);
      remainder.push_back(static_cast<int64_t>(product % all));
      sent(r, k) += share, home(r, e) -= share, missing -= share;
    }
    for (const int r : sorted(indices(sizes.ranks), [&](int i) { return -remainder[static_cast<size_t>(i)]; })) {
      if (missing-- == 0) break;
      ++sent(r, k), --home(r, e);
    }
  }
  return from;
}

}  // namespace metroplex::plan::echo_naive

// The planners capfill and exact and their split over source ranks, written for the lanes of a warp. The same source
// runs on a GPU and on a CPU that emulates the lanes (tests/plan/played_lanes.h). The plans equal those of plan_echo
// byte for byte.
//
// All lanes run the same program with the same registers. They synchronize in the functions of `Lanes`, each of which
// begins and ends with a barrier:
//   - each(n, f): f(i) for each i < n, on any lane, in any order
//   - best(n, f): the largest EchoKey of f(i), on all lanes; sum(n, f) and most(n, f) likewise
//   - one(f): on one lane
#pragma once

#include <cstdint>

#include "plan/echo_numbers.h"

#ifdef __CUDACC__
#define MPX_LANES __device__
#else
#define MPX_LANES
#endif

namespace metroplex::plan {

// Keys compare by the three numbers, then by lowest index. An index of -1 means no candidate.
struct EchoKey {
  int64_t first = 0, second = 0, third = 0;
  int32_t index = -1;
};

MPX_LANES inline bool operator<(const EchoKey& a, const EchoKey& b) {
  if (a.index < 0 || b.index < 0) return a.index < 0 && b.index >= 0;
  if (a.first != b.first) return a.first < b.first;
  if (a.second != b.second) return a.second < b.second;
  if (a.third != b.third) return a.third < b.third;
  return a.index > b.index;
}

struct EchoLaneShape {
  int32_t ranks = 1, experts = 1, slots = 0, ranks_per_node = 0;
  int64_t eps_bp = 100;
  bool exact = false;
};

// Memory that is shared by all lanes.
struct EchoLaneFill {
  int32_t *owner, *used, *hot;  // [replicas], [ranks], [ranks]
  int64_t *rows, *left, *room;  // [replicas], [experts], [ranks]
};
struct EchoLaneMemory {
  const int64_t* counts;                // [ranks][experts]
  int64_t *expert_rows, *loads, *caps;  // [experts], [ranks], [ranks]
  int32_t* order;                       // [ranks] least loaded first
  int64_t *column, *remainder;          // [ranks]
  EchoLaneFill fills[3];
  int32_t* owner;  // the plan: [replicas], [replicas], [ranks][replicas], [ranks]
  int64_t *rows, *source_rows, *final_loads;
};

template <class Lanes>
class EchoLaneProgram {
 public:
  MPX_LANES EchoLaneProgram(const Lanes& lanes, const EchoLaneShape& shape, const EchoLaneMemory& memory)
      : lanes_(lanes),
        s_(shape),
        m_(memory),
        home_(shape.experts / shape.ranks),
        replicas_(shape.ranks * shape.slots) {}

  MPX_LANES void plan() {
    sum();
    for (int i = 0; i < 3; ++i) fills_[i] = m_.fills[i];
    if (s_.exact) exact();
    else capfill();
    finish(fills_[kBest]);
    for (int32_t expert = 0; expert < s_.experts; ++expert) split(expert);
  }

 private:
  enum { kBest, kTrial, kOther };

  MPX_LANES static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
  MPX_LANES static int64_t most(int64_t a, int64_t b) { return a < b ? b : a; }
  MPX_LANES int32_t node(int32_t rank) const { return s_.ranks_per_node > 0 ? rank / s_.ranks_per_node : 0; }
  MPX_LANES void swap(int a, int b) {
    const EchoLaneFill fill = fills_[a];
    fills_[a] = fills_[b];
    fills_[b] = fill;
  }

  MPX_LANES void sum() {
    lanes_.each(s_.experts, [&](int32_t expert) {
      int64_t rows = 0;
      for (int32_t rank = 0; rank < s_.ranks; ++rank) rows += m_.counts[int64_t{rank} * s_.experts + expert];
      m_.expert_rows[expert] = rows;
    });
    lanes_.each(s_.ranks, [&](int32_t rank) {
      int64_t rows = 0;
      for (int32_t expert = rank * home_; expert < (rank + 1) * home_; ++expert) rows += m_.expert_rows[expert];
      m_.loads[rank] = rows;
    });
    total_ = lanes_.sum(s_.ranks, [&](int32_t rank) { return m_.loads[rank]; });
    largest_ = lanes_.most(s_.ranks, [&](int32_t rank) { return m_.loads[rank]; });
    mean_ = (total_ + s_.ranks - 1) / s_.ranks;
    lanes_.each(s_.ranks, [&](int32_t rank) {
      int32_t place = 0;
      for (int32_t other = 0; other < s_.ranks; ++other)
        place += m_.loads[other] < m_.loads[rank] || (m_.loads[other] == m_.loads[rank] && other < rank);
      m_.order[place] = rank;
    });
  }

  MPX_LANES void begin(const EchoLaneFill& fill) {
    taken_ = 0;
    lanes_.each(replicas_, [&](int32_t replica) {
      fill.owner[replica] = -1;
      fill.rows[replica] = 0;
    });
    lanes_.each(s_.experts, [&](int32_t expert) { fill.left[expert] = m_.expert_rows[expert]; });
    lanes_.each(s_.ranks, [&](int32_t rank) {
      fill.used[rank] = 0;
      fill.room[rank] = m_.caps[rank] - m_.loads[rank];
      find_hot(fill, rank);
    });
  }

  MPX_LANES void find_hot(const EchoLaneFill& fill, int32_t rank) const {
    int32_t hot = rank * home_;
    for (int32_t expert = hot + 1; expert < (rank + 1) * home_; ++expert) {
      if (fill.left[expert] > fill.left[hot]) hot = expert;
    }
    fill.hot[rank] = hot;
  }

  MPX_LANES int64_t offer(const EchoLaneFill& fill, int32_t donor) const {
    return least(-fill.room[donor], fill.left[fill.hot[donor]]);
  }

  MPX_LANES int32_t best_donor(const EchoLaneFill& fill, int32_t receiver, bool beyond_surplus) {
    const int64_t room = fill.room[receiver];
    return lanes_
        .best(s_.ranks,
              [&](int32_t donor) {
                if (fill.room[donor] >= 0) return EchoKey{};
                const int64_t piece = beyond_surplus ? fill.left[fill.hot[donor]] : offer(fill, donor);
                return EchoKey{least(piece, room), node(donor) == node(receiver),
                               beyond_surplus ? -fill.room[donor] : piece, donor};
              })
        .index;
  }

  MPX_LANES void give(const EchoLaneFill& fill, int32_t donor, int32_t receiver, int64_t rows) {
    ++taken_;
    lanes_.one([&] {
      const int32_t expert = fill.hot[donor], replica = receiver * s_.slots + fill.used[receiver]++;
      fill.owner[replica] = expert;
      fill.rows[replica] = rows;
      fill.left[expert] -= rows;
      fill.room[donor] += rows;
      fill.room[receiver] -= rows;
      find_hot(fill, donor);
    });
  }

  MPX_LANES bool open(const EchoLaneFill& fill, int32_t receiver) const {
    return fill.room[receiver] > 0 && fill.used[receiver] < s_.slots;
  }

  MPX_LANES void fill_up(const EchoLaneFill& fill, bool small_first) {
    for (int32_t i = 0; i < s_.ranks; ++i) {
      const int32_t receiver = m_.order[i];
      while (open(fill, receiver)) {
        int32_t donor = -1;
        if (small_first && s_.slots - fill.used[receiver] >= 2) {
          donor = lanes_
                      .best(s_.ranks,
                            [&](int32_t rank) {
                              return fill.room[rank] < 0 ? EchoKey{fill.room[rank], 0, 0, rank} : EchoKey{};
                            })
                      .index;
          if (donor >= 0 && offer(fill, donor) >= fill.room[receiver]) donor = -1;
        }
        if (donor < 0) donor = best_donor(fill, receiver, false);
        if (donor < 0) return;
        give(fill, donor, receiver, least(offer(fill, donor), fill.room[receiver]));
      }
    }
  }

  MPX_LANES void fill_as_alias_table(const EchoLaneFill& fill) {
    while (true) {
      const int32_t receiver = lanes_
                                   .best(s_.ranks,
                                         [&](int32_t rank) {
                                           const bool waits = fill.used[rank] == 0 && fill.room[rank] > 0;
                                           return waits ? EchoKey{fill.room[rank], 0, 0, rank} : EchoKey{};
                                         })
                                   .index;
      if (receiver < 0) return;
      while (open(fill, receiver)) {
        const int32_t donor = best_donor(fill, receiver, true);
        if (donor < 0) return;
        give(fill, donor, receiver, least(fill.left[fill.hot[donor]], fill.room[receiver]));
      }
    }
  }

  MPX_LANES int64_t max_load(const EchoLaneFill& fill) {
    return lanes_.most(s_.ranks, [&](int32_t rank) { return m_.caps[rank] - fill.room[rank]; });
  }
  MPX_LANES bool done(const EchoLaneFill& fill) {
    return lanes_.sum(s_.ranks, [&](int32_t rank) { return int64_t{fill.room[rank] < 0}; }) == 0;
  }

  // Returns entry `place` of the ascending list of distinct caps; -1 past its end.
  MPX_LANES int64_t cap_at(int place) const {
    int64_t last = -1;
    for (int i = 0; i < kMostEchoCaps; ++i) {
      const int64_t cap = least(largest_, mean_ + echo_basis_points(mean_, echo_cap_bp(i)));
      if (cap > last && place-- == 0) return cap;
      last = most(cap, last);
    }
    return -1;
  }
  MPX_LANES void set_caps(int64_t cap) {
    lanes_.each(s_.ranks, [&](int32_t rank) { m_.caps[rank] = cap; });
  }

  MPX_LANES int64_t capfill() {
    const int64_t enough = mean_ + echo_basis_points(mean_, s_.eps_bp);
    int64_t best_load = -1, best_taken = 0, best_key = 0;
    for (int place = 0; place < kMostEchoCaps; ++place) {
      const int64_t cap = cap_at(place);
      if (cap < 0 || (best_load >= 0 && most(cap, enough) > best_key)) break;
      for (int mode = 0; mode < (s_.slots > 1 ? 2 : 1); ++mode) {
        set_caps(cap);
        begin(fills_[kTrial]);
        fill_up(fills_[kTrial], mode == 1);
        const int64_t load = max_load(fills_[kTrial]), key = most(load, enough);
        const bool better = best_load < 0 || key < best_key ||
                            (key == best_key && (taken_ < best_taken || (taken_ == best_taken && load < best_load)));
        if (!better) continue;
        best_key = key, best_taken = taken_, best_load = load;
        swap(kTrial, kBest);
      }
    }
    taken_ = best_taken;
    return best_load;
  }

  MPX_LANES void exact() {
    const int64_t odd = total_ % s_.ranks;
    lanes_.each(s_.ranks, [&](int32_t i) { m_.caps[m_.order[i]] = total_ / s_.ranks + (i >= s_.ranks - odd); });
    begin(fills_[kBest]);
    fill_as_alias_table(fills_[kBest]);
    if (done(fills_[kBest])) return;
    int64_t best_load = max_load(fills_[kBest]), best_taken = taken_;
    swap(kBest, kOther);
    int low = 0, high = 0;
    while (cap_at(high) >= 0) ++high;
    while (low < high) {
      const int middle = (low + high) / 2;
      set_caps(cap_at(middle));
      begin(fills_[kTrial]);
      fill_as_alias_table(fills_[kTrial]);
      if (done(fills_[kTrial])) high = middle;
      else low = middle + 1;
      const int64_t load = max_load(fills_[kTrial]);
      if (load > best_load || (load == best_load && taken_ >= best_taken)) continue;
      best_load = load, best_taken = taken_;
      swap(kTrial, kOther);
    }
    const int64_t load = capfill();
    if (best_load < load || (best_load == load && best_taken <= taken_)) swap(kBest, kOther);
  }

  MPX_LANES void finish(const EchoLaneFill& fill) {
    lanes_.each(replicas_, [&](int32_t replica) {
      m_.owner[replica] = fill.owner[replica];
      m_.rows[replica] = fill.rows[replica];
      for (int32_t rank = 0; rank < s_.ranks; ++rank) m_.source_rows[int64_t{rank} * replicas_ + replica] = 0;
    });
    lanes_.each(s_.ranks, [&](int32_t rank) {
      int64_t load = 0;
      for (int32_t expert = rank * home_; expert < (rank + 1) * home_; ++expert) load += m_.expert_rows[expert];
      for (int32_t replica = 0; replica < replicas_; ++replica) {
        if (m_.owner[replica] >= 0 && m_.owner[replica] / home_ == rank) load -= m_.rows[replica];
        if (replica / s_.slots == rank) load += m_.rows[replica];
      }
      m_.final_loads[rank] = load;
    });
  }

  // Returns the next replica of an expert after `replica`; -1: none.
  MPX_LANES int32_t next_replica(int32_t expert, int32_t replica) {
    return lanes_
        .best(replicas_ - replica - 1,
              [&](int32_t i) {
                return m_.owner[replica + 1 + i] == expert ? EchoKey{0, 0, 0, replica + 1 + i} : EchoKey{};
              })
        .index;
  }

  MPX_LANES void split(int32_t expert) {
    const int32_t first = next_replica(expert, -1);
    if (first < 0) return;
    lanes_.each(s_.ranks, [&](int32_t rank) { m_.column[rank] = m_.counts[int64_t{rank} * s_.experts + expert]; });
    int64_t all = m_.expert_rows[expert];
    for (int32_t replica = first; replica >= 0; replica = next_replica(expert, replica)) {
      const int32_t own = replica / s_.slots;
      const int64_t kept = least(m_.rows[replica], m_.column[own]);
      all -= kept;
      lanes_.one([&] {
        m_.source_rows[int64_t{own} * replicas_ + replica] = kept;
        m_.column[own] -= kept;
      });
    }
    for (int32_t replica = first; replica >= 0; replica = next_replica(expert, replica)) {
      const int64_t rest = m_.rows[replica] - m_.source_rows[int64_t{replica / s_.slots} * replicas_ + replica];
      if (rest > 0) in_proportion(replica, rest, all);
      all -= rest;
    }
  }

  MPX_LANES void in_proportion(int32_t replica, int64_t rest, int64_t all) {
    const int64_t given = lanes_.sum(s_.ranks, [&](int32_t rank) {
      const int64_t share = echo_share(m_.column[rank], rest, all, m_.remainder[rank]);
      m_.source_rows[int64_t{rank} * replicas_ + replica] += share;
      m_.column[rank] -= share;
      return share;
    });
    lanes_.each(s_.ranks, [&](int32_t rank) {
      const int64_t mine = m_.remainder[rank];
      int64_t before = 0;
      for (int32_t other = 0; other < s_.ranks; ++other)
        before += m_.remainder[other] > mine || (m_.remainder[other] == mine && other < rank);
      if (before >= rest - given) return;
      ++m_.source_rows[int64_t{rank} * replicas_ + replica];
      --m_.column[rank];
    });
  }

  const Lanes& lanes_;
  const EchoLaneShape s_;
  const EchoLaneMemory m_;
  const int32_t home_, replicas_;
  EchoLaneFill fills_[3];
  int64_t total_ = 0, mean_ = 0, largest_ = 0, taken_ = 0;
};

}  // namespace metroplex::plan

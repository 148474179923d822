// The planners capfill and exact. Both fill ranks below a cap with rows from ranks above it, expert by expert.
#include "plan/echo_parts.h"

#include <numeric>
#include <tuple>

namespace metroplex::plan {
namespace {

class Filler {
 public:
  Filler(EchoTask task, EchoFill& fill) : sizes_(task.sizes), task_(task), fill_(fill) {}

  template <class Cap>
  void begin(const Cap& cap_of) {
    echo_empty(task_, fill_);
    fill_.left = task_.work.expert_rows;
    for (int rank = 0; rank < sizes_.ranks; ++rank) {
      room(rank) = cap_of(rank) - task_.work.loads[static_cast<size_t>(rank)];
      if (room(rank) < 0) find_hot(rank);
    }
  }

  // A rank is a donor or a receiver; a donor gives at most its surplus above the cap. With small_first, a receiver
  // with spare slots first takes the remaining surplus of the donor nearest to the cap, if it fits.
  void fill_up(bool small_first) {
    for (const int32_t receiver : task_.work.rank_order) {  // largest free capacity first
      while (room(receiver) > 0 && fill_.used[static_cast<size_t>(receiver)] < sizes_.slots) {
        int donor = -1;
        if (small_first && sizes_.slots - fill_.used[static_cast<size_t>(receiver)] >= 2) {
          donor = nearest_to_cap();
          if (donor >= 0 && offer(donor) >= room(receiver)) donor = -1;
        }
        if (donor < 0) donor = best_donor(receiver, false);
        if (donor < 0) return;
        give(donor, receiver, std::min(offer(donor), room(receiver)));
      }
    }
  }

  // Works like the construction of an alias table: each receiver is filled completely with the largest available
  // chunks of rows. A donor that gave more than its surplus becomes a receiver. A donor that stays above its cap
  // offers its next largest expert at each slot, and in total more rows than the receiver can accept. Therefore
  // experts / ranks slots suffice, and the caps hold if their sum is at least the number of rows.
  void fill_as_alias_table() {
    while (true) {
      int receiver = -1;
      for (int rank = 0; rank < sizes_.ranks; ++rank) {
        if (fill_.used[static_cast<size_t>(rank)] == 0 && room(rank) > (receiver < 0 ? 0 : room(receiver)))
          receiver = rank;
      }
      if (receiver < 0) return;
      while (room(receiver) > 0 && fill_.used[static_cast<size_t>(receiver)] < sizes_.slots) {
        const int donor = best_donor(receiver, true);
        if (donor < 0) return;
        give(donor, receiver, std::min(left(donor), room(receiver)));
      }
    }
  }

  bool done() const {
    return std::all_of(fill_.room.begin(), fill_.room.end(), [](int64_t room) { return room >= 0; });
  }

  template <class Cap>
  int64_t max_load(const Cap& cap_of) {
    int64_t most = 0;
    for (int rank = 0; rank < sizes_.ranks; ++rank) most = std::max(most, cap_of(rank) - room(rank));
    return most;
  }

 private:
  int64_t& room(int rank) { return fill_.room[static_cast<size_t>(rank)]; }
  int64_t left(int rank) const { return fill_.left[static_cast<size_t>(fill_.hot[static_cast<size_t>(rank)])]; }
  int64_t offer(int donor) { return std::min(-room(donor), left(donor)); }

  void find_hot(int rank) {
    const int first = rank * sizes_.home_experts();
    int hot = first;
    for (int expert = first + 1; expert < first + sizes_.home_experts(); ++expert) {
      if (fill_.left[static_cast<size_t>(expert)] > fill_.left[static_cast<size_t>(hot)]) hot = expert;
    }
    fill_.hot[static_cast<size_t>(rank)] = hot;
  }

  // Returns the donor that can give the most rows, or -1. Among donors that fill the receiver it prefers the same
  // node, then the lowest rank.
  int best_donor(int receiver, bool beyond_surplus) {
    int best = -1, best_near = 0;
    int64_t best_filled = 0, best_size = 0;
    for (int donor = 0; donor < sizes_.ranks; ++donor) {
      if (room(donor) >= 0) continue;
      const int64_t piece = beyond_surplus ? left(donor) : offer(donor);
      const int64_t filled = std::min(piece, room(receiver));
      const int64_t size = beyond_surplus ? -room(donor) : piece;
      const int near = task_.node(donor) == task_.node(receiver);
      if (std::tie(filled, near, size) <= std::tie(best_filled, best_near, best_size)) continue;
      best = donor, best_near = near, best_filled = filled, best_size = size;
    }
    return best;
  }

  int nearest_to_cap() {
    int nearest = -1;
    for (int donor = 0; donor < sizes_.ranks; ++donor) {
      if (room(donor) < 0 && (nearest < 0 || room(donor) > room(nearest))) nearest = donor;
    }
    return nearest;
  }

  // No receiver gets the same expert twice. If a call does not fill the receiver, the owner is at the cap or the
  // expert has no rows left.
  void give(int donor, int receiver, int64_t rows) {
    const int32_t expert = fill_.hot[static_cast<size_t>(donor)];
    const size_t replica = static_cast<size_t>(receiver * sizes_.slots + fill_.used[static_cast<size_t>(receiver)]++);
    fill_.owner[replica] = expert;
    fill_.rows[replica] = rows;
    fill_.left[static_cast<size_t>(expert)] -= rows;
    room(donor) += rows;
    room(receiver) -= rows;
    ++fill_.replicas;
    if (room(donor) < 0) find_hot(donor);
  }

  const EchoSizes sizes_;
  EchoTask task_;
  EchoFill& fill_;
};

void sort_ranks(EchoTask task) {
  std::vector<int32_t>& order = task.work.rank_order;
  order.resize(static_cast<size_t>(task.sizes.ranks));
  std::iota(order.begin(), order.end(), 0);
  const auto load = [&](int32_t rank) { return task.work.loads[static_cast<size_t>(rank)]; };
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return load(a) != load(b) ? load(a) < load(b) : a < b; });
}

int64_t mean_rounded_up(EchoTask task) { return (task.work.total + task.sizes.ranks - 1) / task.sizes.ranks; }

// Lists caps ascending, without duplicates, none above the maximum load.
void list_caps(EchoTask task) {
  const int64_t mean = mean_rounded_up(task),
                most = *std::max_element(task.work.loads.begin(), task.work.loads.end());
  task.work.caps.clear();
  for (int i = 0; i < kMostEchoCaps; ++i) {
    const int64_t cap = std::min(most, mean + echo_basis_points(mean, echo_cap_bp(i)));
    if (task.work.caps.empty() || cap > task.work.caps.back()) task.work.caps.push_back(cap);
  }
}

// Returns the maximum load of the fill in `best`.
int64_t capfill(EchoTask task) {
  EchoWorkspace& work = task.work;
  const int64_t mean = mean_rounded_up(task), enough = mean + echo_basis_points(mean, task.options.eps_bp);
  std::tuple<int64_t, int, int64_t> best;
  bool any = false;
  for (const int64_t cap : work.caps) {
    // The maximum load of a fill is at least its cap, because no cap exceeds the maximum load.
    if (any && std::max(cap, enough) > std::get<0>(best)) break;
    for (int mode = 0; mode < (task.sizes.slots > 1 ? 2 : 1); ++mode) {
      const auto cap_of = [&](int) { return cap; };
      Filler filler(task, work.trial);
      filler.begin(cap_of);
      filler.fill_up(mode == 1);
      const int64_t most = filler.max_load(cap_of);
      const std::tuple<int64_t, int, int64_t> key{std::max(most, enough), work.trial.replicas, most};
      if (any && key >= best) continue;
      any = true;
      best = key;
      std::swap(work.trial, work.best);
    }
  }
  return std::get<2>(best);
}

}  // namespace

void echo_empty(EchoTask task, EchoFill& fill) {
  const size_t replicas = static_cast<size_t>(task.sizes.replicas()), ranks = static_cast<size_t>(task.sizes.ranks);
  fill.owner.assign(replicas, -1);
  fill.rows.assign(replicas, 0);
  fill.used.assign(ranks, 0);
  fill.room.resize(ranks);
  fill.hot.assign(ranks, 0);
  fill.replicas = 0;
}

void echo_capfill(EchoTask task) {
  sort_ranks(task);
  list_caps(task);
  capfill(task);
}

void echo_exact(EchoTask task) {
  EchoWorkspace& work = task.work;
  sort_ranks(task);
  // If rows cannot be divided evenly, the most loaded ranks keep one more.
  std::vector<int64_t>& caps = work.kept;
  caps.assign(static_cast<size_t>(task.sizes.ranks), task.mean());
  const int64_t odd = work.total % task.sizes.ranks;
  for (int64_t i = task.sizes.ranks - odd; i < task.sizes.ranks; ++i)
    ++caps[static_cast<size_t>(work.rank_order[static_cast<size_t>(i)])];
  const auto exact_cap = [&](int rank) { return caps[static_cast<size_t>(rank)]; };
  Filler exact(task, work.best);
  exact.begin(exact_cap);
  exact.fill_as_alias_table();
  if (exact.done()) return;

  // Too few slots: use the lowest cap that this method reaches, or the result of capfill.
  list_caps(task);
  std::pair<int64_t, int> best{exact.max_load(exact_cap), work.best.replicas};
  std::swap(work.best, work.other);
  for (size_t low = 0, high = work.caps.size(); low < high;) {
    const size_t middle = (low + high) / 2;
    const auto cap_of = [&](int) { return work.caps[middle]; };
    Filler filler(task, work.trial);
    filler.begin(cap_of);
    filler.fill_as_alias_table();
    if (filler.done()) high = middle;
    else low = middle + 1;
    const std::pair<int64_t, int> key{filler.max_load(cap_of), work.trial.replicas};
    if (key >= best) continue;
    best = key;
    std::swap(work.trial, work.other);
  }
  const int64_t most = capfill(task);
  if (best <= std::pair<int64_t, int>{most, work.best.replicas}) std::swap(work.best, work.other);
}

}  // namespace metroplex::plan

// Divides the rows of each replica over the source ranks.
#include "plan/echo_parts.h"

namespace metroplex::plan {
namespace {

class Splitter {
 public:
  Splitter(const EchoCounts& counts, EchoTask task, EchoPlan& plan)
      : counts_(counts), sizes_(task.sizes), options_(task.options), work_(task.work), plan_(plan) {
    const size_t ranks = static_cast<size_t>(sizes_.ranks);
    work_.column.resize(std::max(ranks, work_.column.size()));
    work_.quota.resize(std::max(ranks, work_.quota.size()));
    work_.remainder.resize(ranks);
    work_.rank_order.resize(ranks);
    plan_.source_rows.assign(ranks * static_cast<size_t>(sizes_.replicas()), 0);
  }

  void split() {
    sort_replicas();
    const std::vector<int32_t>& order = work_.replica_order;
    for (size_t first = 0, end = 0; first < order.size(); first = end) {
      const int32_t expert = owner(order[first]);
      while (end < order.size() && owner(order[end]) == expert) ++end;
      const std::span<const int32_t> replicas = std::span<const int32_t>(order).subspan(first, end - first);
      for (int rank = 0; rank < sizes_.ranks; ++rank) left(rank) = counts_.at(rank, expert);
      if (options_.split == EchoSplit::local_first) local_first(expert, replicas);
      else breadth_then_depth(expert, replicas);
    }
  }

 private:
  int32_t owner(int32_t replica) const { return plan_.owner[static_cast<size_t>(replica)]; }
  int64_t rows(int32_t replica) const { return plan_.rows[static_cast<size_t>(replica)]; }
  int64_t& left(int rank) {
    return work_.column[static_cast<size_t>(rank)];
  }  // rows of the expert not yet sent to a replica
  int64_t& from(int rank, int32_t replica) {
    return plan_.source_rows[static_cast<size_t>(rank * sizes_.replicas() + replica)];
  }

  // Sorts the used replicas by expert, then by replica index.
  void sort_replicas() {
    std::vector<int32_t>& order = work_.replica_order;
    order.clear();
    for (int32_t replica = 0; replica < sizes_.replicas(); ++replica) {
      if (owner(replica) >= 0) order.push_back(replica);
    }
    std::sort(order.begin(), order.end(),
              [&](int32_t a, int32_t b) { return owner(a) != owner(b) ? owner(a) < owner(b) : a < b; });
  }

  void local_first(int32_t expert, std::span<const int32_t> replicas) {
    int64_t all = work_.expert_rows[static_cast<size_t>(expert)];
    for (const int32_t replica : replicas) {
      const int own = sizes_.rank_of_replica(replica);
      const int64_t kept = std::min(rows(replica), left(own));
      from(own, replica) = kept;
      left(own) -= kept;
      all -= kept;
    }
    for (const int32_t replica : replicas) {
      const int64_t rest = rows(replica) - from(sizes_.rank_of_replica(replica), replica);
      if (rest > 0) in_proportion(replica, rest, all);
      all -= rest;
    }
  }

  // Takes `rest` of the `all` remaining rows, rounded by largest remainder. Ties go to the lowest rank.
  void in_proportion(int32_t replica, int64_t rest, int64_t all) {
    int64_t missing = rest;
    size_t uneven = 0;
    std::vector<int64_t>& remainder = work_.remainder;
    std::vector<int32_t>& order = work_.rank_order;
    for (int rank = 0; rank < sizes_.ranks; ++rank) {
      const int64_t share = echo_share(left(rank), rest, all, remainder[static_cast<size_t>(rank)]);
      if (remainder[static_cast<size_t>(rank)] > 0) order[uneven++] = rank;
      from(rank, replica) += share;
      left(rank) -= share;
      missing -= share;
    }
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(uneven);
    const auto chosen = order.begin() + missing;  // always fewer than `uneven`
    if (missing > 0) {
      std::nth_element(order.begin(), chosen - 1, end, [&](int32_t a, int32_t b) {
        const int64_t of_a = remainder[static_cast<size_t>(a)], of_b = remainder[static_cast<size_t>(b)];
        return of_a != of_b ? of_a > of_b : a < b;
      });
    }
    for (auto rank = order.begin(); rank != chosen; ++rank) {
      ++from(*rank, replica);
      --left(*rank);
    }
  }

  void breadth_then_depth(int32_t expert, std::span<const int32_t> replicas) {
    const int64_t all = work_.expert_rows[static_cast<size_t>(expert)];
    std::vector<int64_t>& wanted = work_.quota;
    wanted.resize(std::max(wanted.size(), replicas.size()));
    for (size_t i = 0; i < replicas.size(); ++i) {
      wanted[i] = rows(replicas[i]);
      for (int rank = 0; rank < sizes_.ranks; ++rank) {
        const int64_t share = echo_breadth(counts_.at(rank, expert), all, rows(replicas[i]), options_.float32);
        from(rank, replicas[i]) = share;
        left(rank) -= share;
        wanted[i] -= share;
      }
    }
    echo_overlap(
        EchoSpan(work_.column).first(static_cast<size_t>(sizes_.ranks)), EchoSpan(wanted).first(replicas.size()),
        [&](int rank, int bucket, int64_t rows) { from(rank, replicas[static_cast<size_t>(bucket)]) += rows; });
  }

  const EchoCounts counts_;
  const EchoSizes sizes_;
  const EchoOptions& options_;
  EchoWorkspace& work_;
  EchoPlan& plan_;
};

}  // namespace

void echo_split(const EchoCounts& counts, EchoTask task, EchoPlan& plan) { Splitter(counts, task, plan).split(); }

}  // namespace metroplex::plan

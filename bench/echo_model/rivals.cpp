#include "echo_model/rivals.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace metroplex::bench {
namespace {

std::vector<int64_t> rows_of_experts(const plan::EchoCounts& counts) {
  std::vector<int64_t> rows(static_cast<size_t>(counts.sizes.experts), 0);
  for (int source = 0; source < counts.sizes.ranks; ++source) {
    for (int expert = 0; expert < counts.sizes.experts; ++expert)
      rows[static_cast<size_t>(expert)] += counts.at(source, expert);
  }
  return rows;
}

template <class T>
std::vector<int> largest_first(std::span<const T> values) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)]; });
  return order;
}

}  // namespace

std::vector<int32_t> select_shadows(const plan::EchoCounts& counts, const EchoLayer& layer, double flops,
                                    double bandwidth) {
  const std::vector<int64_t> rows = rows_of_experts(counts);
  const std::vector<int> order = largest_first(std::span<const int64_t>(rows));
  const double elements = static_cast<double>(layer.expert_elements());
  const double compute = 3 * 2 * elements / flops;
  const double features = 4 * static_cast<double>(layer.hidden * layer.row_bytes) / bandwidth;
  const double weights = elements * layer.weight_bytes / bandwidth;
  const auto seconds = [&](int64_t largest) { return (compute + features) * static_cast<double>(largest); };
  double best = seconds(rows[static_cast<size_t>(order[0])]), shadows = 0;
  std::vector<int32_t> result;
  for (size_t i = 0; i + 1 < order.size(); ++i) {
    shadows += weights;
    const double with = seconds(rows[static_cast<size_t>(order[i + 1])]) + shadows;
    if (with >= best) break;
    best = with;
    result.push_back(order[i]);
  }
  return result;
}

EchoPlacement shadow_placement(const plan::EchoCounts& counts, std::span<const int32_t> experts) {
  EchoPlacement placement = echo_at_owner(counts);
  placement.plans = true;
  for (const int32_t expert : experts) {
    const int home = counts.sizes.home(expert);
    for (int rank = 0; rank < counts.sizes.ranks; ++rank) {
      if (rank == home) continue;
      placement.copies.push_back({expert, home, rank});
      placement.away += counts.at(rank, expert);
      placement.at(rank, home) -= counts.at(rank, expert);
      placement.at(rank, rank) += counts.at(rank, expert);
    }
  }
  return placement;
}

namespace {

class LlepAssignment {
 public:
  LlepAssignment(std::span<const int64_t> expert_rows, int ranks, const LlepOptions& options)
      : home_experts_(static_cast<int>(expert_rows.size()) / ranks),
        options_(options),
        load_(static_cast<size_t>(ranks), 0) {
    int64_t total = 0;
    for (size_t expert = 0; expert < expert_rows.size(); ++expert) {
      load_[static_cast<size_t>(home(static_cast<int>(expert)))] += expert_rows[expert];
      total += expert_rows[expert];
    }
    cap_ = std::max<int64_t>(1, static_cast<int64_t>(options.factor * static_cast<double>(total / ranks)));
  }

  // load_ has the assigned rows and the unassigned rows of a rank's local experts.
  void assign(int expert, int64_t rows) {
    const int at_home = home(expert);
    load_[static_cast<size_t>(at_home)] -= rows;
    const int64_t kept_rows = std::clamp<int64_t>(room(at_home), 0, rows);
    if (kept_rows > 0) add(expert, at_home, kept_rows);
    spill(expert, rows - kept_rows);
  }

  std::vector<LlepChunk> pieces;

 private:
  int home(int expert) const { return expert / home_experts_; }
  int64_t room(int rank) const { return cap_ - load_[static_cast<size_t>(rank)]; }
  void add(int expert, int rank, int64_t rows) {
    pieces.push_back({expert, rank, rows});
    load_[static_cast<size_t>(rank)] += rows;
  }

  void spill(int expert, int64_t rows) {
    while (rows > 0) {
      std::vector<int> others;
      for (int rank = 0; rank < static_cast<int>(load_.size()); ++rank) {
        if (rank != home(expert)) others.push_back(rank);
      }
      if (others.empty()) return add(expert, home(expert), rows);
      std::stable_sort(others.begin(), others.end(), [&](int a, int b) { return room(a) > room(b); });
      // Selects the first rank that takes a large enough chunk; if there is none, the least loaded rank takes all.
      const auto takes = [&](int rank) {
        const int64_t piece = std::min(rows, room(rank));
        return piece > 0 && (piece >= options_.min_rows || piece == rows);
      };
      const auto rank = std::find_if(others.begin(), others.end(), takes);
      const int64_t piece = rank == others.end() ? rows : std::min(rows, room(*rank));
      add(expert, rank == others.end() ? others[0] : *rank, piece);
      rows -= piece;
    }
  }

  int home_experts_;
  const LlepOptions& options_;
  std::vector<int64_t> load_;
  int64_t cap_ = 0;
};

}  // namespace

std::vector<LlepChunk> llep_chunks(std::span<const int64_t> expert_rows, int ranks, const LlepOptions& options) {
  LlepAssignment assignment(expert_rows, ranks, options);
  for (const int expert : largest_first(expert_rows)) {
    if (expert_rows[static_cast<size_t>(expert)] > 0)
      assignment.assign(expert, expert_rows[static_cast<size_t>(expert)]);
  }
  return assignment.pieces;
}

EchoPlacement llep_placement(const plan::EchoCounts& counts, const LlepOptions& options) {
  const plan::EchoSizes sizes = counts.sizes;
  EchoPlacement placement = echo_at_owner(counts);
  placement.plans = true;
  if (placement.imbalance() < options.threshold) return placement;
  int source = 0, expert = -1;
  int64_t left = 0;  // the source's remaining rows of the expert
  for (const LlepChunk& piece : llep_chunks(rows_of_experts(counts), sizes.ranks, options)) {
    if (piece.expert != expert) {
      expert = piece.expert;
      source = 0;
      left = counts.at(0, expert);
    }
    const int home = sizes.home(expert);
    const EchoCopy copy{expert, home, piece.rank};
    if (piece.rank != home &&
        std::find(placement.copies.begin(), placement.copies.end(), copy) == placement.copies.end())
      placement.copies.push_back(copy);
    if (piece.rank != home) placement.away += piece.rows;
    for (int64_t rows = piece.rows; rows > 0;) {
      while (left == 0) left = counts.at(++source, expert);
      const int64_t taken = std::min(rows, left);
      placement.at(source, home) -= taken;
      placement.at(source, piece.rank) += taken;
      left -= taken;
      rows -= taken;
    }
  }
  return placement;
}

}  // namespace metroplex::bench

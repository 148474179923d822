// Invariants of every ECHO replica plan.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "plan/echo_parts.h"

namespace metroplex::test {

class EchoCheck {
 public:
  EchoCheck(const plan::EchoCounts& counts, const plan::EchoOptions& options, const plan::EchoPlan& plan)
      : counts_(counts), sizes_(counts.sizes), options_(options), plan_(plan) {}

  std::string problem() {
    const size_t replicas = static_cast<size_t>(sizes_.replicas()), ranks = static_cast<size_t>(sizes_.ranks);
    if (!(plan_.sizes == sizes_) || plan_.owner.size() != replicas || plan_.rows.size() != replicas ||
        plan_.source_rows.size() != ranks * replicas || plan_.final_loads.size() != ranks)
      return "the plan is of other sizes";
    sum();
    for (const auto& part :
         {&EchoCheck::replicas, &EchoCheck::experts, &EchoCheck::loads, &EchoCheck::check_planner}) {
      if (const std::string problem = (this->*part)(); !problem.empty()) return problem;
    }
    return "";
  }

 private:
  int32_t owner(int replica) const { return plan_.owner[static_cast<size_t>(replica)]; }
  int64_t rows(int replica) const { return plan_.rows[static_cast<size_t>(replica)]; }
  static int64_t& at(std::vector<int64_t>& values, int index) { return values[static_cast<size_t>(index)]; }

  void sum() {
    work_.expert_rows.assign(static_cast<size_t>(sizes_.experts), 0);
    work_.loads.assign(static_cast<size_t>(sizes_.ranks), 0);
    sent_ = received_ = work_.loads;
    given_ = work_.expert_rows;
    for (int expert = 0; expert < sizes_.experts; ++expert) {
      for (int rank = 0; rank < sizes_.ranks; ++rank) at(work_.expert_rows, expert) += counts_.at(rank, expert);
      at(work_.loads, sizes_.home(expert)) += at(work_.expert_rows, expert);
      work_.total += at(work_.expert_rows, expert);
    }
  }

  std::string replicas() {
    for (int replica = 0; replica < sizes_.replicas(); ++replica) {
      const int rank = sizes_.rank_of_replica(replica);
      int64_t sum = 0;
      for (int source = 0; source < sizes_.ranks; ++source) {
        if (plan_.from(source, replica) < 0)
          return base::concat("clone ", replica, " takes less than no rows of rank ", source);
        sum += plan_.from(source, replica);
      }
      if (sum != rows(replica))
        return base::concat("clone ", replica, " has ", rows(replica), " rows, sources send ", sum);
      if (owner(replica) < -1 || owner(replica) >= sizes_.experts)
        return base::concat("clone ", replica, " of no expert");
      if ((owner(replica) < 0) != (rows(replica) == 0))
        return base::concat("clone ", replica, " has an owner or rows, not both");
      if (owner(replica) < 0) continue;
      if (sizes_.home(owner(replica)) == rank) return base::concat("clone ", replica, " is at its home");
      for (int other = rank * sizes_.slots; other < replica; ++other) {
        if (owner(other) == owner(replica))
          return base::concat("clones ", other, " and ", replica, " of one rank are alike");
      }
      at(given_, owner(replica)) += rows(replica);
      at(sent_, sizes_.home(owner(replica))) += rows(replica);
      at(received_, rank) += rows(replica);
    }
    return "";
  }

  std::string experts() {
    for (int expert = 0; expert < sizes_.experts; ++expert) {
      if (at(given_, expert) > at(work_.expert_rows, expert))
        return base::concat("expert ", expert, " gives more than it has");
    }
    std::vector<int64_t> taken(static_cast<size_t>(sizes_.experts));
    for (int source = 0; source < sizes_.ranks; ++source) {
      std::fill(taken.begin(), taken.end(), 0);
      for (int replica = 0; replica < sizes_.replicas(); ++replica) {
        if (owner(replica) >= 0) at(taken, owner(replica)) += plan_.from(source, replica);
      }
      for (int expert = 0; expert < sizes_.experts; ++expert) {
        if (at(taken, expert) > counts_.at(source, expert))
          return base::concat("rank ", source, " sends clones of expert ", expert, " more than it has");
      }
    }
    return "";
  }

  std::string loads() {
    int64_t sum = 0;
    for (int rank = 0; rank < sizes_.ranks; ++rank) {
      const int64_t load = plan_.final_loads[static_cast<size_t>(rank)];
      if (load != at(work_.loads, rank) - at(sent_, rank) + at(received_, rank))
        return base::concat("the final load of rank ", rank, " is not ", load);
      sum += load;
    }
    if (sum != work_.total) return base::concat(work_.total, " rows have become ", sum);
    const int64_t before = *std::max_element(work_.loads.begin(), work_.loads.end());
    if (!options_.random && plan_.max_load() > before)
      return base::concat("the largest load grew from ", before, " to ", plan_.max_load());
    return "";
  }

  std::string check_planner() {
    if (options_.random) return "";
    const bool upstream =
        options_.planner == config::EchoPlanner::greedy || options_.planner == config::EchoPlanner::binpack;
    if (upstream) return check_upstream();
    const int64_t mean = (work_.total + sizes_.ranks - 1) / sizes_.ranks;
    if (options_.planner == config::EchoPlanner::exact && sizes_.slots >= sizes_.home_experts() &&
        plan_.max_load() != mean)
      return base::concat("the largest load is ", plan_.max_load(), ", not the mean ", mean);
    for (int rank = 0; rank < sizes_.ranks && options_.planner == config::EchoPlanner::capfill; ++rank) {
      if (at(sent_, rank) > 0 && at(received_, rank) > 0) return base::concat("rank ", rank, " sends and receives");
    }
    return "";
  }

  std::string check_upstream() {
    plan::echo_spills({sizes_, options_, work_});
    std::vector<int64_t> spills(static_cast<size_t>(sizes_.ranks), 0);
    for (int expert = 0; expert < sizes_.experts; ++expert) {
      if (at(given_, expert) > at(work_.spill, expert))
        return base::concat("expert ", expert, " gives more than it spills");
      at(spills, sizes_.home(expert)) += at(work_.spill, expert);
    }
    const int64_t mean = work_.total / sizes_.ranks;
    for (int rank = 0; rank < sizes_.ranks; ++rank) {
      if (at(received_, rank) > at(work_.spare, rank))
        return base::concat("rank ", rank, " receives more rows than its capacity");
      if (at(spills, rank) != std::max<int64_t>(0, at(work_.loads, rank) - mean))
        return base::concat("the experts of rank ", rank, " spill ", at(spills, rank));
    }
    return "";
  }

  const plan::EchoCounts& counts_;
  const plan::EchoSizes sizes_;
  const plan::EchoOptions& options_;
  const plan::EchoPlan& plan_;
  plan::EchoWorkspace work_;
  std::vector<int64_t> sent_, received_;  // [ranks]
  std::vector<int64_t> given_;            // [experts], rows that go to replicas
};

// Returns "" if `options` allow `plan` for these counts, else a message with the violated invariant.
inline std::string echo_problem(const plan::EchoCounts& counts, const plan::EchoOptions& options,
                                const plan::EchoPlan& plan) {
  return EchoCheck(counts, options, plan).problem();
}

}  // namespace metroplex::test

#include "price/link.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::price {
namespace {

// Number of members in each domain of `ranks` consecutive ranks.
std::vector<int64_t> count_per_domain(const std::vector<int>& members, int64_t ranks) {
  std::vector<int64_t> counts;
  int64_t last = -1;
  for (const int member : members) {  // groups list their members in ascending order
    const int64_t domain = ranks > 0 ? member / ranks : 0;
    if (domain != last || counts.empty()) counts.push_back(0);
    last = domain;
    ++counts.back();
  }
  return counts;
}

bool exchanges(const std::string& operation) { return operation == "all_to_all" || operation == "exchange_rows"; }

int64_t doublings(int64_t count) {
  int64_t doublings = 0;
  for (int64_t reached = 1; reached < count; reached *= 2) ++doublings;
  return doublings;
}

}  // namespace

double link_bytes(const std::string& operation, int64_t ranks, double bytes) {
  const double others = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  if (operation == "all_gather" || operation == "reduce_scatter" || exchanges(operation)) return others * bytes;
  if (operation == "all_reduce") return 2 * others * bytes;
  return operation == "barrier" ? 0 : bytes;
}

int64_t count_steps(const std::string& operation, int64_t count, bool innermost) {
  if (exchanges(operation)) return 1;
  if (operation == "all_reduce") return 2 * doublings(count);
  const bool ring = operation == "all_gather" || operation == "reduce_scatter";
  return ring && innermost ? count - 1 : doublings(count);
}

double CollectiveCost::transfer_s() const {
  return link_s.empty() ? 0 : *std::max_element(link_s.begin(), link_s.end());
}

const LinkCost& Cluster::between(int64_t rank, int64_t peer) const {
  for (const Domain& domain : domains) {
    if (domain.ranks == 0 || rank / domain.ranks == peer / domain.ranks) return domain.link;
  }
  return domains.back().link;
}

CollectiveCost Cluster::collective_cost(const std::string& operation, const std::vector<int>& members,
                                        double bytes) const {
  MPX_ASSERT(!domains.empty(), "a cluster without links");
  CollectiveCost cost{0, std::vector<double>(domains.size())};
  if (members.size() < 2) return cost;
  const auto all = static_cast<int64_t>(members.size());
  int64_t inner = 1;  // members in the largest domain of the previous level, which share its outgoing bytes
  for (size_t level = 0; level < domains.size(); ++level) {
    const Domain& domain = domains[level];
    const std::vector<int64_t> counts = count_per_domain(members, domain.ranks);
    const int64_t here = *std::max_element(counts.begin(), counts.end());
    if (here == inner) continue;  // no pair of members uses this level
    const int64_t count = (here + inner - 1) / inner;
    const double moved = exchanges(operation) ? bytes * static_cast<double>(here - inner) / static_cast<double>(all)
                                              : link_bytes(operation, count, bytes) / static_cast<double>(inner);
    cost.link_s[level] = moved / domain.link.bytes_per_s;
    cost.latency_s +=
        domain.link.latency_s + static_cast<double>(count_steps(operation, count, level == 0) - 1) * domain.step_s;
    inner = here;
  }
  return cost;
}

}  // namespace metroplex::price

#include "price/link.h"

#include <algorithm>
#include <cmath>
#include <set>

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

double rounds(size_t domains) { return std::max(1.0, std::ceil(std::log2(static_cast<double>(domains)))); }

}  // namespace

double link_bytes(const std::string& operation, int64_t ranks, double bytes) {
  const double others = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  if (operation == "all_gather" || operation == "reduce_scatter" || exchanges(operation)) return others * bytes;
  if (operation == "all_reduce") return 2 * others * bytes;
  return operation == "barrier" ? 0 : bytes;
}

const LinkCost& Cluster::between(int64_t rank, int64_t peer) const {
  for (const Domain& domain : domains) {
    if (domain.ranks == 0 || rank / domain.ranks == peer / domain.ranks) return domain.link;
  }
  return domains.back().link;
}

double Cluster::collective_seconds(const std::string& operation, const std::vector<int>& members,
                                   double bytes) const {
  MPX_ASSERT(!domains.empty(), "a cluster without links");
  if (members.size() < 2) return 0;
  const auto all = static_cast<int64_t>(members.size());
  const double moved = link_bytes(operation, all, bytes);
  double seconds = 0, latency_s = 0;
  int64_t inner = 1;  // members in the largest domain of the previous level, which share its outgoing bytes
  for (const Domain& domain : domains) {
    const std::vector<int64_t> counts = count_per_domain(members, domain.ranks);
    const int64_t here = *std::max_element(counts.begin(), counts.end());
    if (here == inner) continue;  // no pair of members uses this level
    const double whole = exchanges(operation)
                             ? bytes * static_cast<double>(here - inner) / static_cast<double>(all)
                             : link_bytes(operation, (here + inner - 1) / inner, bytes) / static_cast<double>(inner);
    const double level = inner == 1 && here == all ? moved : whole;
    seconds = std::max(seconds, level / domain.link.bytes_per_s);
    latency_s += domain.link.latency_s * (inner == 1 ? 1 : rounds(static_cast<size_t>((here + inner - 1) / inner)));
    inner = here;
  }
  return latency_s + seconds;
}

}  // namespace metroplex::price

// Time of communication. LinkCost is the time of one transfer; `link_bytes` are the bytes of a collective on a
// member's link; a Cluster nests domains of links, such as NVLink in a node and a network between nodes. The
// simulator (replay/step_time.h) and the virtual clock (clock/virtual_clock.h) share these formulas.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace metroplex::price {

// An operation takes latency_s + bytes / bytes_per_s after its start.
struct LinkCost {
  double latency_s = 0;
  double bytes_per_s = std::numeric_limits<double>::infinity();
  double seconds(double bytes) const { return latency_s + bytes / bytes_per_s; }
};

// Bytes that a member sends, and receives, in a collective of `ranks` members. `bytes` is the larger of the input and
// the output of a member. all_gather and reduce_scatter as a ring, all_to_all and exchange_rows move (n - 1) / n of
// it, all_reduce twice that. Other operations move `bytes`.
double link_bytes(const std::string& operation, int64_t ranks, double bytes);

// Links between consecutive global ranks. A domain holds `ranks` consecutive ranks; 0: all ranks.
struct Domain {
  std::string name;  // "nvlink"
  int64_t ranks = 0;
  LinkCost link = {};  // of one rank, per direction, as achieved by large transfers
  double step_s = 0;   // latency of every step of a collective after the first
  bool shared = true;  // collectives of one rank that overlap in time share the bandwidth (shared_links.h)
};

// Steps of a collective, one after another, between `count` members of a domain or domains. In the innermost domain,
// all_gather and reduce_scatter run as a ring of count - 1 steps. Between domains, they take one step per doubling.
// all_reduce runs as two trees, all_to_all and exchange_rows in one step. Others take one step per doubling.
int64_t count_steps(const std::string& operation, int64_t count, bool innermost);

// Time of a collective without other traffic.
struct CollectiveCost {
  double latency_s = 0;
  std::vector<double> link_s;  // time on the links of each domain of the cluster, at the full bandwidth
  double transfer_s() const;   // of the slowest domain; the domains work at the same time
  double seconds() const { return latency_s + transfer_s(); }
};

// Domains from the innermost to the outermost, which holds all ranks.
struct Cluster {
  std::vector<Domain> domains{{"link", 0, {}}};

  const LinkCost& between(int64_t rank, int64_t peer) const;
  // `members`: global ranks. The members in a domain exchange their share over its links, while each sends an equal
  // part of the remaining bytes over the next links. The latencies of the domains add up.
  CollectiveCost collective_cost(const std::string& operation, const std::vector<int>& members, double bytes) const;
};

}  // namespace metroplex::price

#include "echo_model/cost.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

#include "base/error.h"
#include "price/machine.h"

namespace metroplex::bench {
namespace {

// The latency is the magnitude of one collective round, not from a data sheet. 100 us of planning on a GPU is the
// target of the planner's kernel (UltraEP publishes 106 to 114); it is not measured.
EchoMachine of_gpu(const char* name, const std::string& description) {
  const price::Machine machine = price::find_machine(description);
  const price::Domain &near = machine.cluster.domains.front(), &far = machine.cluster.domains.back();
  return {name,
          machine.peak_flops.at("bf16"),
          near.link.bytes_per_s,
          far.link.bytes_per_s,
          static_cast<int>(near.ranks),
          5e-6,
          100e-6};
}

// Bytes or rounds of one rank, inside and outside its domain.
struct LinkBytes {
  double link = 0, network = 0;
};

int broadcast_rounds(int replicas) {
  return std::bit_width(static_cast<unsigned>(replicas));
}  // ceil(log2(replicas + 1))

double slower_seconds(const LinkBytes& bytes, const EchoMachine& machine) {
  return std::max(bytes.link / machine.link, bytes.network / machine.network);
}

// Seconds of one pass of rows; the return pass takes the same time.
double pass_seconds(const EchoPlacement& placement, double row_bytes, const EchoMachine& machine) {
  std::vector<LinkBytes> sent(static_cast<size_t>(placement.ranks)), received(sent.size());
  bool any = false;
  for (int source = 0; source < placement.ranks; ++source) {
    for (int rank = 0; rank < placement.ranks; ++rank) {
      if (source == rank || placement.at(source, rank) == 0) continue;
      const bool near = source / machine.domain == rank / machine.domain;
      const double bytes = row_bytes * static_cast<double>(placement.at(source, rank));
      (near ? sent[static_cast<size_t>(source)].link : sent[static_cast<size_t>(source)].network) += bytes;
      (near ? received[static_cast<size_t>(rank)].link : received[static_cast<size_t>(rank)].network) += bytes;
      any = true;
    }
  }
  double longest = 0;
  for (const auto* const side : {&sent, &received}) {
    for (const LinkBytes& bytes : *side) longest = std::max(longest, slower_seconds(bytes, machine));
  }
  return any ? longest + machine.latency : 0;
}

// Per domain: the number of copies of one expert.
using Domains = std::map<int, int>;

// Relays across domains first, then within each domain.
LinkBytes relay_rounds(const Domains& replicas, int owner_domain) {
  LinkBytes rounds;
  int others = 0;
  for (const auto& [domain, count] : replicas) {
    if (domain != owner_domain) ++others;
    rounds.link = std::max<double>(rounds.link, broadcast_rounds(domain == owner_domain ? count : count - 1));
  }
  rounds.network = broadcast_rounds(others);
  return rounds;
}

}  // namespace

std::span<const EchoMachine> echo_machines() {
  // A rank of the last one is two cores of AMD EPYC, family 26. GEMMs: bench/2026-11-23-amd-epyc-2-cores.md (bf16,
  // 0.95 TFLOP/s). Link: bench/2026-11-21-amd-epyc-2-cores.md (copying, 49.2 GB/s read and written). Plan time: bench
  // echo_plan, 64 ranks, 256 experts.
  static const std::vector<EchoMachine> machines{of_gpu("H100", "h100"),
                                                 of_gpu("H200", "h200"),
                                                 of_gpu("GB200", "gb200_nvl72"),
                                                 {"2 cores of EPYC", 0.95e12, 24.6e9, 24.6e9, 64, 5e-6, 240e-6}};
  return machines;
}

double EchoLayer::row_seconds(const EchoMachine& machine) const {
  constexpr double kPasses = 3;  // forward, gradient of the input, gradient of the weight
  return kPasses * 2 * static_cast<double>(expert_elements()) / machine.flops;
}

double EchoLayer::other_seconds(const EchoMachine& machine) const {
  return 3 * other_flops * static_cast<double>(tokens) / machine.flops;
}

EchoPlacement::EchoPlacement(int num_ranks)
    : ranks(num_ranks), rows(static_cast<size_t>(num_ranks) * static_cast<size_t>(num_ranks), 0) {}

std::vector<int64_t> EchoPlacement::loads() const {
  std::vector<int64_t> sums(static_cast<size_t>(ranks), 0);
  for (int source = 0; source < ranks; ++source) {
    for (int rank = 0; rank < ranks; ++rank) sums[static_cast<size_t>(rank)] += at(source, rank);
  }
  return sums;
}

int64_t EchoPlacement::total() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

int64_t EchoPlacement::crossing() const {
  int64_t stay = 0;
  for (int rank = 0; rank < ranks; ++rank) stay += at(rank, rank);
  return total() - stay;
}

double EchoPlacement::imbalance() const {
  const std::vector<int64_t> sums = loads();
  const int64_t all = total();
  if (all == 0) return 1;
  return static_cast<double>(*std::max_element(sums.begin(), sums.end())) * ranks / static_cast<double>(all);
}

EchoPlacement echo_at_owner(const plan::EchoCounts& counts) {
  EchoPlacement placement(counts.sizes.ranks);
  for (int source = 0; source < counts.sizes.ranks; ++source) {
    for (int expert = 0; expert < counts.sizes.experts; ++expert)
      placement.at(source, counts.sizes.home(expert)) += counts.at(source, expert);
  }
  return placement;
}

EchoPlacement echo_placement(const plan::EchoCounts& counts, const plan::EchoPlan& plan) {
  MPX_ASSERT(plan.sizes == counts.sizes, "a plan of other sizes than the counts");
  const plan::EchoSizes sizes = plan.sizes;
  EchoPlacement placement = echo_at_owner(counts);
  placement.plans = true;
  for (int replica = 0; replica < sizes.replicas(); ++replica) {
    const int32_t expert = plan.owner[static_cast<size_t>(replica)];
    if (expert < 0) continue;
    const int home = sizes.home(expert), rank = sizes.rank_of_replica(replica);
    placement.copies.push_back({expert, home, rank});
    placement.away += plan.rows[static_cast<size_t>(replica)];
    for (int source = 0; source < sizes.ranks; ++source) {
      placement.at(source, home) -= plan.from(source, replica);
      placement.at(source, rank) += plan.from(source, replica);
    }
  }
  return placement;
}

EchoPlacement echo_balanced(int ranks, int64_t rows_of_source) {
  EchoPlacement placement(ranks);
  for (int source = 0; source < ranks; ++source) {
    for (int rank = 0; rank < ranks; ++rank)  // the remainder starts at another rank for each source
      placement.at(source, (source + rank) % ranks) = rows_of_source / ranks + (rank < rows_of_source % ranks);
  }
  return placement;
}

double echo_copy_seconds(std::span<const EchoCopy> copies, int ranks, double bytes, const EchoMachine& machine,
                         bool relay) {
  if (copies.empty()) return 0;
  std::vector<LinkBytes> sent(static_cast<size_t>(ranks)), received(sent.size());
  std::map<std::pair<int, int>, Domains> of_expert;  // by owner and expert
  for (const EchoCopy& copy : copies) {
    const bool near = copy.from / machine.domain == copy.to / machine.domain;
    (near ? received[static_cast<size_t>(copy.to)].link : received[static_cast<size_t>(copy.to)].network) += bytes;
    if (!relay)
      (near ? sent[static_cast<size_t>(copy.from)].link : sent[static_cast<size_t>(copy.from)].network) += bytes;
    ++of_expert[{copy.from, copy.expert}][copy.to / machine.domain];
  }
  double longest = 0, rounds = 1;
  for (const auto* const side : {&sent, &received}) {
    for (const LinkBytes& of_rank : *side) longest = std::max(longest, slower_seconds(of_rank, machine));
  }
  if (!relay) return longest + machine.latency;
  std::vector<double> seconds(static_cast<size_t>(ranks), 0);  // per owner; its experts are sent one after another
  for (const auto& [key, replicas] : of_expert) {
    const LinkBytes needed = relay_rounds(replicas, key.first / machine.domain);
    rounds = std::max(rounds, needed.link + needed.network);
    seconds[static_cast<size_t>(key.first)] +=
        needed.link * bytes / machine.link + needed.network * bytes / machine.network;
  }
  return std::max(longest, *std::max_element(seconds.begin(), seconds.end())) + rounds * machine.latency;
}

EchoCost echo_cost(const EchoPlacement& placement, const EchoLayer& layer, const EchoMachine& machine,
                   const EchoCostOptions& options) {
  const std::vector<int64_t> loads = placement.loads();
  const double elements = static_cast<double>(layer.expert_elements());
  const auto copies = [&](const std::vector<EchoCopy>& of, int element_bytes) {
    return echo_copy_seconds(of, placement.ranks, elements * element_bytes, machine, options.relay);
  };
  EchoCost cost;
  cost.compute = static_cast<double>(*std::max_element(loads.begin(), loads.end())) * layer.row_seconds(machine);
  cost.rows = 4 * pass_seconds(placement, static_cast<double>(layer.hidden * layer.row_bytes), machine);
  cost.replicas = copies(placement.copies, layer.weight_bytes) * (options.resend ? 2 : 1) +
                  copies(placement.moves, layer.weight_bytes);
  cost.other = layer.other_seconds(machine);
  cost.gradients = std::max(0.0, copies(placement.copies, layer.grad_bytes) - cost.other * 2 / 3);
  cost.plan = placement.plans ? machine.plan : 0;
  return cost;
}

EchoGain echo_gain(const EchoPlacement& before, const EchoPlacement& after, const EchoLayer& layer,
                   const EchoMachine& machine, const EchoCostOptions& options) {
  const EchoCost plain = echo_cost(before, layer, machine, options), cost = echo_cost(after, layer, machine, options);
  return {plain.compute - cost.compute, cost.plan + cost.replicas + cost.gradients};
}

}  // namespace metroplex::bench

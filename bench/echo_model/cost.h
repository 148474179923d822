// Predicts the time of an MoE layer from row counts and machine rates. The maxima over ranks determine it: most rows,
// most bytes sent or received, most replicas of an owner. Rates of GPUs come from price/machine.h and were not fitted
// to results, so time shares are more reliable than times.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plan/echo.h"

namespace metroplex::bench {

struct EchoMachine {
  const char* name = "";
  double flops = 0;    // FLOP/s of a rank's GEMMs
  double link = 0;     // B/s inside its domain, per direction
  double network = 0;  // B/s to other domains, per direction
  int domain = 1;      // ranks
  double latency = 0;  // seconds, of one round of messages
  double plan = 0;     // seconds from the counts to the destination slots of a rank's rows
};
std::span<const EchoMachine> echo_machines();

struct EchoLayer {
  int64_t hidden = 0, ffn = 0;
  int matrices = 3;                                     // per expert, of hidden x ffn: 2, or 3 with a gate
  int row_bytes = 2, weight_bytes = 2, grad_bytes = 4;  // per element: dispatched, as replica, gradient
  double other_flops = 0;                               // forward, per token: attention, shared experts, router
  int64_t tokens = 0;                                   // per rank

  int64_t expert_elements() const { return matrices * hidden * ffn; }
  double row_seconds(const EchoMachine& machine) const;    // forward and backward of one row
  double other_seconds(const EchoMachine& machine) const;  // forward and backward of `other_flops`
};

// An expert's weights are sent from its owner to a rank, and their gradient is returned.
struct EchoCopy {
  int32_t expert = 0, from = 0, to = 0;
  bool operator==(const EchoCopy&) const = default;
};

struct EchoPlacement {
  int ranks = 0;
  std::vector<int64_t> rows;     // [ranks][ranks]: source rank, computing rank
  std::vector<EchoCopy> copies;  // before the layer, and again before its backward
  std::vector<EchoCopy> moves;   // weights that move before this layer because the placement changes
  // Persistent replicas: gradients and new weights are exchanged once a step, overlapped with other work.
  std::vector<EchoCopy> persistent;
  bool plans = false;  // in every layer before rows are sent
  int64_t away = 0;    // rows that are not computed by their expert's owner

  explicit EchoPlacement(int num_ranks = 0);
  int64_t& at(int source, int rank) { return rows[static_cast<size_t>(source * ranks + rank)]; }
  int64_t at(int source, int rank) const { return rows[static_cast<size_t>(source * ranks + rank)]; }
  std::vector<int64_t> loads() const;  // [ranks]
  int64_t total() const;
  int64_t crossing() const;  // rows computed outside their source rank
  double imbalance() const;  // largest load / mean; 1 without rows
};

EchoPlacement echo_at_owner(const plan::EchoCounts& counts);
EchoPlacement echo_placement(const plan::EchoCounts& counts, const plan::EchoPlan& plan);
// Forced balance: a source's rows are divided equally among all ranks; every source has `rows_of_source`.
EchoPlacement echo_balanced(int ranks, int64_t rows_of_source);

struct EchoCostOptions {
  bool relay = true;   // replicas forward experts: ceil(log2(replicas + 1)) rounds; else owners send all
  bool resend = true;  // replicas are freed after forward and sent again
};

// Seconds, forward and backward.
struct EchoCost {
  double compute = 0;    // of the rank with most rows
  double rows = 0;       // dispatch and combine, in forward and backward
  double replicas = 0;   // weights to replicas, and moved weights
  double gradients = 0;  // the part of their return that backward of the layer's other work does not hide
  double plan = 0;
  double other = 0;  // the layer's other work

  double moe() const { return compute + rows + replicas + gradients + plan; }
  double total() const { return moe() + other; }
};
EchoCost echo_cost(const EchoPlacement& placement, const EchoLayer& layer, const EchoMachine& machine,
                   const EchoCostOptions& options = {});

// Seconds to send all copies, `bytes` each.
double echo_copy_seconds(std::span<const EchoCopy> copies, int ranks, double bytes, const EchoMachine& machine,
                         bool relay);

// A plan pays off if the time saved on the most loaded rank exceeds the exposed time of plan, replicas and their
// gradients.
struct EchoGain {
  double gained = 0, paid = 0;  // seconds
  bool worth() const { return gained > paid; }
};
EchoGain echo_gain(const EchoPlacement& before, const EchoPlacement& after, const EchoLayer& layer,
                   const EchoMachine& machine, const EchoCostOptions& options = {});

}  // namespace metroplex::bench

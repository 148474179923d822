// What a layer of experts takes, predicted from counts of rows and plain figures: the rank with most rows, the rank
// that sends or receives most, the home with most clones. Products and links run at the rates of a table, which no
// result was used to choose, so shares of times say more than times.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plan/echo.h"

namespace metroplex::bench {

struct EchoMachine {
  const char* name = "";
  double flops = 0;  // a second, of a rank's products
  double link = 0;  // bytes a second that a rank sends, and as many that it receives, to and from ranks of its domain
  double network = 0;  // and to and from others
  int domain = 1;      // ranks
  double latency = 0;  // seconds, of one round of messages
  double plan = 0;     // seconds from the counts to the columns of a rank's rows
};
std::span<const EchoMachine> echo_machines();

struct EchoLayer {
  int64_t hidden = 0, ffn = 0;
  int matrices = 3;                                     // of hidden x ffn in an expert: 2, or 3 with a gate
  int row_bytes = 2, weight_bytes = 2, grad_bytes = 4;  // of an element: as sent, as cloned, as it returns
  double other_flops = 0;                               // forward, of a token: attention, shared experts, router
  int64_t tokens = 0;                                   // of a rank

  int64_t expert_elements() const { return matrices * hidden * ffn; }
  double row_seconds(const EchoMachine& machine) const;    // forward and backward of one row
  double other_seconds(const EchoMachine& machine) const;  // forward and backward of `other_flops`
};

// An expert's weights come from its home to a rank, and their gradient goes back.
struct EchoCopy {
  int32_t expert = 0, from = 0, to = 0;
  bool operator==(const EchoCopy&) const = default;
};

// Where rows are computed, by whatever system.
struct EchoPlacement {
  int ranks = 0;
  std::vector<int64_t> rows;     // [ranks][ranks]: of each source, by each rank
  std::vector<EchoCopy> copies;  // before the layer, and again before its backward
  std::vector<EchoCopy> moves;   // weights that move because the placement is renewed before this layer
  // Replicas that stay: gradients and new weights pass between them once a step, behind other work.
  std::vector<EchoCopy> kept;
  bool plans = false;  // in every layer, before rows are sent
  int64_t away = 0;    // rows that are computed elsewhere than at their expert's home

  explicit EchoPlacement(int num_ranks = 0);
  int64_t& at(int source, int rank) { return rows[static_cast<size_t>(source * ranks + rank)]; }
  int64_t at(int source, int rank) const { return rows[static_cast<size_t>(source * ranks + rank)]; }
  std::vector<int64_t> loads() const;  // [ranks]
  int64_t total() const;
  int64_t crossing() const;  // rows that leave their source
  double imbalance() const;  // largest load / mean; 1 without rows
};

EchoPlacement echo_at_home(const plan::EchoCounts& counts);
EchoPlacement echo_placement(const plan::EchoCounts& counts, const plan::EchoPlan& plan);
// Forced balance: a source's rows go to all ranks alike, and every rank has `rows_of_source`.
EchoPlacement echo_balanced(int ranks, int64_t rows_of_source);

struct EchoCostOptions {
  bool relay =
      true;  // holders of an expert pass it on: ceil(log2(clones + 1)) rounds; else its home sends every clone
  bool resend = true;  // clones are dropped after forward and sent again
};

// Seconds, forward and backward.
struct EchoCost {
  double compute = 0;    // the most rows
  double rows = 0;       // dispatch and combine, and both in backward
  double clones = 0;     // weights to clones and moved weights
  double gradients = 0;  // what of their return the backward of the layer's other work does not hide
  double plan = 0;
  double other = 0;  // the layer's other work

  double moe() const { return compute + rows + clones + gradients + plan; }
  double total() const { return moe() + other; }
};
EchoCost echo_cost(const EchoPlacement& placement, const EchoLayer& layer, const EchoMachine& machine,
                   const EchoCostOptions& options = {});

// Seconds in which copies of `bytes` each arrive.
double echo_copy_seconds(std::span<const EchoCopy> copies, int ranks, double bytes, const EchoMachine& machine,
                         bool relay);

// A plan is worth it if the rows that the fullest rank is rid of take longer than what is exposed of the plan, of the
// clones and of their gradients.
struct EchoGain {
  double gained = 0, paid = 0;  // seconds
  bool worth() const { return gained > paid; }
};
EchoGain echo_gain(const EchoPlacement& before, const EchoPlacement& after, const EchoLayer& layer,
                   const EchoMachine& machine, const EchoCostOptions& options = {});

}  // namespace metroplex::bench

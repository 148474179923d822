// The compared systems, and their placements for a trace.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "echo_model/rivals.h"
#include "echo_model/traces.h"

namespace metroplex::bench {

class System {
 public:
  explicit System(std::string called) : name(std::move(called)) {}
  virtual ~System() = default;
  // Must be called for consecutive steps. Systems that estimate costs use `machine`.
  virtual EchoPlacement place(const EchoTrace& trace, size_t step, const EchoMachine& machine) = 0;
  virtual bool weighs_costs() const { return false; }  // or distances: the placement depends on the machine

  const std::string name;
};

// `slots` replica slots per rank. Shadowing and LLEP use none, bin packing one. Excludes systems with a history
// longer than the trace.
std::vector<std::unique_ptr<System>> systems(int slots, const EchoLayer& layer, size_t steps);

struct Summary {
  std::string name;
  std::vector<double> imbalance;       // per measured step
  double replicas = 0;                 // the following fields are means over steps
  double bytes = 0, sender_bytes = 0;  // weights, one way: total, and maximum over sending ranks
  double rounds = 0;                   // relay rounds of one owner's experts, maximum over owners
  double away = 0, crossing = 0;       // shares of the rows
  // Per machine: the time share of forced balance, and the share of steps whose gain exceeds their cost (echo_gain).
  std::vector<double> share, pays;
  double mean() const;
  double quantile(double of) const;
};

// Steps before `from` only build history. The last summary is the bound, with only `imbalance`.
std::vector<Summary> summaries(const EchoTrace& trace, int slots, const EchoLayer& layer, size_t from);

}  // namespace metroplex::bench

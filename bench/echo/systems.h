// The systems that are compared, and what each makes of a trace.
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
  // Step after step. The machine is what a system reckons with that weighs costs.
  virtual EchoPlacement place(const EchoTrace& trace, size_t step, const EchoMachine& machine) = 0;
  virtual bool weighs_costs() const { return false; }  // or distances: another machine, another placement

  const std::string name;
};

// `slots` places a rank, but for those that know none (shadowing, LLEP) or one (bin packing). None whose history is
// longer than the trace.
std::vector<std::unique_ptr<System>> systems(int slots, const EchoLayer& layer, size_t steps);

struct Summary {
  std::string name;
  std::vector<double> imbalance;       // of each step that counts
  double clones = 0;                   // means over steps from here
  double bytes = 0, sender_bytes = 0;  // weights, one way: all, and of the rank that holds most of what is sent
  double rounds = 0;                   // of the relays of one home's experts, the most of all homes
  double away = 0, crossing = 0;       // shares of the rows
  // Of each machine: the share of forced balance, and of the steps in which what is paid is gained (echo_gain).
  std::vector<double> share, pays;
  double mean() const;
  double quantile(double of) const;
};

// Steps before `from` are history only. The last summary is the bound: of `imbalance` alone.
std::vector<Summary> summaries(const EchoTrace& trace, int slots, const EchoLayer& layer, size_t from);

}  // namespace metroplex::bench

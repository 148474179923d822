// Simulates one training step before it runs: the operators, collectives and waits of a StepTrace, the actions of the
// pipeline table, and a machine. One rank of each pipeline stage is simulated. Its other groups are assumed to
// contain ranks with equal times.
//
// A rank executes its operators one after another. Two actions in turns alternate as in the executor. A collective
// starts when the simulated members of its group have issued it and the previous one of the same communicator has
// ended. It takes CollectiveCost::seconds, longer if other collectives of the rank use the same links
// (price/shared_links.h). A tensor between stages arrives LinkCost::seconds after its producer ends.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/pipeline_table.h"
#include "price/machine.h"
#include "replay/step_trace.h"
#include "replay/timeline.h"

namespace metroplex::replay {

// How full the experts' buffers and replicas are.
struct ExpertLoad {
  double imbalance = 1;  // rows of the busiest rank / mean
  double fill = 1;       // fraction of the buffers that holds rows (config::expert_fill)
  double replicas = 1;   // fraction of the replica slots in use
};

struct StepTimeRequest {
  const price::Machine& machine;
  const plan::PipelineTable& table;
  const std::vector<StepTrace>& traces;  // [pp rank]
  bool graphs = false;                   // one graph replays the step: operators need no launch
  ExpertLoad experts = {};
  bool events = false;  // fill StepTime::events and timeline
};

// Times of one rank; their sum is the length of the step.
struct RankTimes {
  double forward = 0, backward = 0, weight = 0, optimizer = 0;  // operators with their launches
  std::map<std::string, double> exposed;                        // waits for collectives, by purpose
  double idle = 0;                                              // waits for other stages: bubble and p2p

  double compute() const { return forward + backward + weight + optimizer; }
  double communication() const;
  double total() const { return compute() + communication() + idle; }
};

// A collective, or the work after the last action.
struct SimulatedEvent {
  int rank = 0;       // pipeline rank
  std::string track;  // "step" or the purpose of a communicator
  std::string name;
  double start = 0, end = 0;
};

struct StepTime {
  double seconds = 0;
  std::vector<RankTimes> ranks;
  std::vector<SimulatedEvent> events;
  Timeline timeline;  // of all actions; two actions in turns have one entry for each turn

  const RankTimes& slowest() const;  // the rank with the longest compute time
};

StepTime simulate_step(const StepTimeRequest& request);

// Calls and bytes of the communication of one rank in a step, by group and operation. Bytes are the larger of input
// and output. Messages between stages are "send" and "recv" of group "pp".
struct CollectiveCount {
  int64_t calls = 0, bytes = 0;
  bool operator==(const CollectiveCount&) const = default;
};
std::map<std::pair<std::string, std::string>, CollectiveCount> count_collectives(const StepTrace& trace,
                                                                                 const plan::PipelineTable& table,
                                                                                 int pp_rank);

}  // namespace metroplex::replay

#include "replay/step_time.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "price/link_timeline.h"
#include "price/shared_links.h"

namespace metroplex::replay {
namespace {

// Ranks and purpose identify a communicator, as in comm.
struct Communicator {
  std::string purpose;
  std::vector<int> members;  // simulated ranks, by pp
  // Exists for several members. Its operations have given seconds: one "byte" is one second.
  std::unique_ptr<price::LinkTimeline> timeline;
  std::map<std::pair<std::string, double>, price::CollectiveCost> costs = {};  // by name and bytes
};

// A collective in flight. The transfers of a group with one simulated member share the links of this rank. Groups
// that span stages do not, since the times of their members are not known in order.
struct InFlight {
  price::SharedTransferPtr transfer;
  price::TimedOperationPtr operation;
};

// Consecutive operators become one item.
struct Item {
  enum class Kind { compute, issue, turn, wait } kind = Kind::compute;
  double seconds = 0;  // of the operators
  price::CollectiveCost cost;
  Communicator* communicator = nullptr;
  int call = 0;
  std::string name;
};
using Items = std::vector<Item>;

// The border between stages i and i + 1 that a message crosses: i.
int border(const plan::PipelineTable& table, int rank, const plan::Action& action) {
  const int stage = table.placement().stage_of({rank, action.chunk});
  const bool after = action.kind == plan::ActionKind::send_forward || action.kind == plan::ActionKind::recv_backward;
  return after ? stage : stage - 1;
}

class Simulation {
 public:
  explicit Simulation(const StepTimeRequest& request) : in_(request), ranks_(request.table.ranks.size()) {
    MPX_ASSERT(request.traces.size() == ranks_.size(), "one trace for each of ", ranks_.size(), " pipeline ranks");
    for (const StepTrace& trace : request.traces) {
      const auto pp = trace.groups.find("pp");
      global_.push_back(pp == trace.groups.end() ? 0 : pp->second.ranks.at(global_.size()));
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].links.emplace(request.machine.cluster);
      ranks_[rank].after = compile(rank, in_.traces[rank].after);
    }
    out_.ranks.resize(ranks_.size());
    out_.timeline.ranks.resize(ranks_.size());
  }

  StepTime run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (step(rank)) moved = true;
      }
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      MPX_CHECK(ranks_[rank].finished, "plan", "pipeline table '", in_.table.name, "': rank ", rank,
                " never gets past action ", ranks_[rank].action);
      out_.seconds = std::max(out_.seconds, ranks_[rank].now);
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) out_.ranks[rank].idle += out_.seconds - ranks_[rank].now;
    if (in_.events) summarize(in_.table, out_.timeline);
    return std::move(out_);
  }

 private:
  struct Pass {
    const plan::Action* action = nullptr;  // null: the work after the last action
    const Items* items = nullptr;          // null: its inputs have not arrived
    size_t item = 0;
  };
  struct Rank {
    double now = 0;
    size_t action = 0;
    std::vector<Pass> passes;  // of the action in progress: two if it is paired with the next one
    size_t turn = 0;           // index of the pass that has the turn
    double turn_start = 0;
    bool finished = false;
    std::optional<price::SharedLinks> links;
    std::unordered_map<int, InFlight> open;              // collectives by call number
    std::map<std::string, Communicator*> communicators;  // by group
    std::map<const Communicator*, int64_t> issued;       // number of collectives of groups that span stages
    Items after;
  };

  // The communicator of a group of `rank`.
  Communicator* communicator(size_t rank, const std::string& name) {
    Communicator*& known = ranks_[rank].communicators[name];
    if (known == nullptr) known = make_communicator(rank, name);
    return known;
  }
  Communicator* make_communicator(size_t rank, const std::string& name) {
    const auto group = in_.traces[rank].groups.find(name);
    MPX_ASSERT(group != in_.traces[rank].groups.end(), "no group ", name, " in a trace");
    auto& made = communicators_[{group->second.purpose, group->second.ranks}];
    if (!made) {
      made = std::make_unique<Communicator>();
      made->purpose = group->second.purpose;
      for (size_t pp = 0; pp < global_.size(); ++pp) {
        const std::vector<int>& all = group->second.ranks;
        const bool in = global_.size() == 1 || std::find(all.begin(), all.end(), global_[pp]) != all.end();
        if (in || pp == rank) made->members.push_back(static_cast<int>(pp));
      }
      const auto members = static_cast<int>(made->members.size());
      if (members > 1) made->timeline = std::make_unique<price::LinkTimeline>(price::LinkCost{0, 1}, members);
    }
    return made.get();
  }

  double scale(const TraceOperation& operation) const {
    const std::string& name = operation.name;
    if (name == "fetch_rows" || name == "return_rows") return in_.experts.replicas;
    if (name == "exchange_rows" || name == "permute_rows" || name.starts_with("expert_"))
      return in_.experts.imbalance * in_.experts.fill;
    return name.starts_with("grouped") || name == "all_to_all" ? in_.experts.imbalance : 1;
  }

  double seconds(const TraceOperation& operation, bool in_graph) const {
    const price::Operator one{operation.name, operation.dtype, operation.flops * scale(operation),
                              static_cast<double>(operation.bytes) * scale(operation)};
    const double device = price::operator_seconds(in_.machine, one);
    if (in_graph) return device;
    const double host = price::issue_seconds(in_.machine, one);
    return in_.machine.gpu ? std::max(device, host) : device + host;
  }

  // Layers repeat their collectives.
  const price::CollectiveCost& cost(size_t rank, const TraceOperation& operation, Communicator& on) const {
    const double bytes = static_cast<double>(operation.bytes) * scale(operation);
    const auto [entry, is_new] = on.costs.try_emplace({operation.name, bytes});
    if (is_new)
      entry->second = in_.machine.cluster.collective_cost(operation.name,
                                                          in_.traces[rank].groups.at(operation.group).ranks, bytes);
    return entry->second;
  }

  Items compile(size_t rank, const std::vector<IslandTrace>& regions) {
    Items items;
    const auto add_compute = [&](double time) {
      if (items.empty() || items.back().kind != Item::Kind::compute) items.emplace_back();
      items.back().seconds += time;
    };
    for (const IslandTrace& region : regions) {
      if (region.captured) add_compute(in_.machine.launch_s);
      for (const TraceOperation& operation : region.operations) {
        if (operation.group.empty()) {
          add_compute(seconds(operation, in_.graphs || region.captured));
          continue;
        }
        Communicator* const on = communicator(rank, operation.group);
        const bool wait = operation.name == "wait";
        if (operation.name == "recv") continue;  // received while the own tensor is sent
        if (operation.in_turn) items.emplace_back().kind = Item::Kind::turn;
        Item& item = items.emplace_back();
        item.kind = wait ? Item::Kind::wait : Item::Kind::issue;
        item.communicator = on;
        item.call = operation.call;
        item.name = operation.name;
        if (!wait) item.cost = cost(rank, operation, *on);
      }
    }
    return items;
  }

  const Items& items(size_t rank, const plan::Action& action) {
    const int last = in_.table.num_microbatches - 1;
    const Position position = action.microbatch == last ? Position::last
                              : action.microbatch == 0  ? Position::first
                                                        : Position::middle;
    const TracedAction& traced = in_.traces[rank].find(action.kind, action.chunk, position);
    const auto [entry, is_new] = compiled_.try_emplace(&traced);
    if (is_new) entry->second = compile(rank, traced.regions);
    return entry->second;
  }

  // Executes the next item or action of a rank. Returns false if it must wait for another rank, or has finished.
  bool step(size_t index) {
    Rank& rank = ranks_[index];
    if (rank.finished) return false;
    if (!rank.passes.empty()) return advance(index);
    const std::vector<plan::Action>& actions = in_.table.ranks[index];
    rank.turn_start = rank.now;
    if (rank.action == actions.size()) {
      rank.passes = {{nullptr, &rank.after}};
      return true;
    }
    const plan::Action& action = actions[rank.action];
    if (plan::is_compute(action.kind)) {
      if (action.in_turns) rank.passes.push_back({&actions[rank.action + 1]});  // it begins, as in the executor
      rank.passes.push_back({&action});
      return true;
    }
    record(index, action, rank.now + (plan::is_send(action.kind) ? send(index, action) : 0));
    ++rank.action;
    return true;
  }

  // Advances the pass that has the turn by one item.
  bool advance(size_t index) {
    Rank& rank = ranks_[index];
    Pass& pass = rank.passes[rank.turn];
    if (pass.items == nullptr) {
      if (!wait_for_inputs(index, *pass.action)) return false;
      pass.items = &items(index, *pass.action);
      rank.turn_start = rank.now;
      return true;
    }
    if (pass.item == pass.items->size()) {
      end_pass(index);
      return true;
    }
    if (!run_item(index, (*pass.items)[pass.item])) return false;
    ++pass.item;
    return true;
  }

  void end_pass(size_t index) {
    Rank& rank = ranks_[index];
    const plan::Action* const action = rank.passes[rank.turn].action;
    rank.finished = action == nullptr;
    if (!rank.finished) {
      record(index, *action, rank.now);
      ++rank.action;
    } else if (in_.events) {
      out_.events.push_back({static_cast<int>(index), "step", "gradients and update", rank.turn_start, rank.now});
    }
    rank.passes.erase(rank.passes.begin() + static_cast<std::ptrdiff_t>(rank.turn));
    rank.turn = 0;
  }

  // Ends the turn of an action.
  void record(size_t index, const plan::Action& action, double end) {
    double& start = ranks_[index].turn_start;
    if (in_.events) out_.timeline.ranks[index].push_back({action, start, end});
    start = ranks_[index].now;
  }

  double& part(size_t index) {
    RankTimes& times = out_.ranks[index];
    const Rank& rank = ranks_[index];
    const plan::Action* const action = rank.passes[rank.turn].action;
    if (action == nullptr) return times.optimizer;
    switch (action->kind) {
      case plan::ActionKind::forward:
        return times.forward;
      case plan::ActionKind::weight:
        return times.weight;
      default:
        return times.backward;
    }
  }

  bool run_item(size_t index, const Item& item) {
    Rank& rank = ranks_[index];
    if (item.kind == Item::Kind::turn) {
      if (rank.passes.size() == 1) return true;
      record(index, *rank.passes[rank.turn].action, rank.now);
      rank.turn = 1 - rank.turn;
      return true;
    }
    if (item.kind == Item::Kind::compute) {
      rank.now += item.seconds;
      part(index) += item.seconds;
      return true;
    }
    Communicator& on = *item.communicator;
    const int member = static_cast<int>(std::find(on.members.begin(), on.members.end(), static_cast<int>(index)) -
                                        on.members.begin());
    if (item.kind == Item::Kind::issue) {
      InFlight issued;
      if (on.timeline) {
        issued.operation = on.timeline->issue(rank.issued[&on]++, member, rank.now, {item.cost.seconds()});
      } else {
        issued.transfer = rank.links->issue(&on, rank.now, item.cost);
      }
      if (item.call != 0) rank.open[item.call] = issued;  // 0: no wait follows
      return true;
    }
    const auto open = rank.open.find(item.call);
    if (open == rank.open.end()) return true;
    const InFlight& pending = open->second;
    if (pending.operation && pending.operation->missing > 0) return false;
    const price::LinkUse use =
        pending.operation ? on.timeline->link_use(*pending.operation, member) : rank.links->finish(*pending.transfer);
    if (in_.events)
      out_.events.push_back({static_cast<int>(index), on.purpose, "collective", use.start_s, use.end_s});
    const double until = std::max(rank.now, use.end_s);
    // Before the start, other simulated ranks are late: idle time.
    const double late = pending.operation ? std::max(0.0, std::min(use.start_s, until) - rank.now) : 0;
    out_.ranks[index].idle += late;
    out_.ranks[index].exposed[on.purpose] += until - rank.now - late;
    rank.now = until;
    rank.open.erase(open);
    return true;
  }

  // Returns the seconds until the tensor arrives.
  double send(size_t index, const plan::Action& action) {
    const plan::PipelineTable& table = in_.table;
    const auto number = static_cast<size_t>(border(table, static_cast<int>(index), action));
    const double bytes = static_cast<double>(in_.traces[index].border_bytes.at(number));
    const auto peer = static_cast<size_t>(action.peer);
    const double seconds =
        peer == index ? 0 : in_.machine.cluster.between(global_[index], global_[peer]).seconds(bytes);
    arrival_[plan::transfer_id(table, static_cast<int>(index), action)] = ranks_[index].now + seconds;
    return seconds;
  }

  bool wait_for_inputs(size_t index, const plan::Action& action) {
    if (action.kind == plan::ActionKind::weight) return true;
    const bool forward = action.kind == plan::ActionKind::forward;
    const int own = static_cast<int>(index);
    if (in_.table.placement().peer({own, action.chunk}, forward ? -1 : 1) < 0) return true;
    plan::Action recv = action;
    recv.kind = forward ? plan::ActionKind::recv_forward : plan::ActionKind::recv_backward;
    const auto arrival = arrival_.find(plan::transfer_id(in_.table, own, recv));
    if (arrival == arrival_.end()) return false;
    Rank& rank = ranks_[index];
    out_.ranks[index].idle += std::max(0.0, arrival->second - rank.now);
    rank.now = std::max(rank.now, arrival->second);
    return true;
  }

  const StepTimeRequest& in_;
  std::vector<Rank> ranks_;
  std::vector<int> global_;  // rank number of each simulated rank
  std::map<std::pair<std::string, std::vector<int>>, std::unique_ptr<Communicator>> communicators_;
  std::map<const TracedAction*, Items> compiled_;
  std::unordered_map<int64_t, double> arrival_;
  StepTime out_;
};

}  // namespace

double RankTimes::communication() const {
  double sum = 0;
  for (const auto& [purpose, seconds] : exposed) sum += seconds;
  return sum;
}

const RankTimes& StepTime::slowest() const {
  return *std::max_element(ranks.begin(), ranks.end(), [](const RankTimes& left, const RankTimes& right) {
    return left.compute() < right.compute();
  });
}

StepTime simulate_step(const StepTimeRequest& request) { return Simulation(request).run(); }

namespace {

using Counts = std::map<std::pair<std::string, std::string>, CollectiveCount>;

void count_regions(const std::vector<IslandTrace>& regions, Counts& counts) {
  for (const IslandTrace& region : regions) {
    for (const TraceOperation& operation : region.operations) {
      if (operation.group.empty() || operation.name == "wait") continue;
      CollectiveCount& count = counts[{operation.group, operation.name}];
      ++count.calls;
      count.bytes += operation.bytes;
    }
  }
}

}  // namespace

std::map<std::pair<std::string, std::string>, CollectiveCount> count_collectives(const StepTrace& trace,
                                                                                 const plan::PipelineTable& table,
                                                                                 int pp_rank) {
  Counts counts;
  for (const plan::Action& action : table.ranks[static_cast<size_t>(pp_rank)]) {
    if (plan::is_p2p(action.kind) && action.peer != pp_rank) {
      CollectiveCount& count = counts[{"pp", plan::is_send(action.kind) ? "send" : "recv"}];
      ++count.calls;
      count.bytes += trace.border_bytes.at(static_cast<size_t>(border(table, pp_rank, action)));
    }
    if (!plan::is_compute(action.kind)) continue;
    const Position position = action.microbatch + 1 == table.num_microbatches ? Position::last
                              : action.microbatch == 0                        ? Position::first
                                                                              : Position::middle;
    count_regions(trace.find(action.kind, action.chunk, position).regions, counts);
  }
  count_regions(trace.after, counts);
  return counts;
}

}  // namespace metroplex::replay

// Computes how long each pass reads its graph instance, and checks that a plan reuses no instance too early
// (graph_plan.h).
//
// pass_reads() runs over a rank's actions like the executor, with the executor's bookkeeping of border tensors
// (Borders). Instead of a tensor it stores the owner of the tensor's buffer (Piece). The last reader of a buffer is
//   - input: the backward (or weight action) of its microbatch
//   - output: the next chunk on the same rank, or the action in which its send completes
//   - input gradient: the previous chunk on the same rank. The executor sends a copy to another rank.
// If Borders no longer holds a Piece after an action, its send completed in that action.
#include "plan/graph_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "base/error.h"
#include "plan/borders.h"
#include "plan/pipeline_table.h"

namespace metroplex::plan {

int64_t PassReads::until() const { return std::max({input.until, output.until, input_gradient.until}); }

namespace {

struct P2pCall {
  bool done = false;
  void wait() { done = true; }
};

// Owner of a border tensor: the pass (microbatch, chunk) whose output or input gradient it is. chunk -1: receive
// memory, which is in no instance.
struct Piece {
  int chunk = -1, microbatch = -1;
  bool gradient = false;
  auto operator<=>(const Piece&) const = default;
};

std::string name_of(size_t index, const Action& action) {
  return base::concat("action ", index, ", ", action_name(action.kind), " of microbatch ", action.microbatch,
                      " chunk ", action.chunk);
}

// Runs over one rank's actions like the executor, with a Piece per border tensor.
class Walk {
 public:
  Walk(const PipelineTable& table, int pp_rank)
      : table_(table),
        rank_(pp_rank),
        reads_(static_cast<size_t>(table.num_chunks),
               std::vector<PassReads>(static_cast<size_t>(table.num_microbatches))) {}

  ReadsOfPasses run() {
    const std::vector<Action>& actions = table_.ranks.at(static_cast<size_t>(rank_));
    for (size_t i = 0; i < actions.size();) {
      at_ = i;
      name_ = name_of(i, actions[i]);
      const size_t end = is_p2p(actions[i].kind) ? call_end(actions, i) : i + 1;
      if (is_p2p(actions[i].kind)) {
        exchange(&actions[i], &actions[i] + (end - i));
      } else if (is_compute(actions[i].kind)) {
        compute(actions[i]);
      } else {
        borders_.release({actions[i].microbatch, actions[i].chunk});
      }
      settle();
      i = end;
    }
    borders_.finish();
    at_ = actions.size();
    name_ = "the end of the step";
    settle();
    return std::move(reads_);
  }

 private:
  PassReads& of(int microbatch, int chunk) {
    return reads_.at(static_cast<size_t>(chunk)).at(static_cast<size_t>(microbatch));
  }
  // Times as in PassReads: the current action first waits, then computes.
  int64_t waits() const { return 2 * static_cast<int64_t>(at_); }
  int64_t computes() const { return waits() + 1; }

  void compute(const Action& action) {
    PassReads& own = of(action.microbatch, action.chunk);
    if (action.kind == ActionKind::forward) {
      own.written = computes();
    } else {
      own.input = {computes(), base::concat("its ", action_name(action.kind), " in ", name_)};
    }
    if (action.kind != ActionKind::weight) cross(action);
  }

  // A forward or backward takes a tensor from one border and stores one at the other.
  void cross(const Action& action) {
    const bool forward = action.kind == ActionKind::forward;
    const StagePlacement placement = table_.placement();
    const StagePlace own{rank_, action.chunk};
    const BorderKey key{action.microbatch, action.chunk};
    if (!(forward ? placement.first(own) : placement.last(own)))
      take(forward ? borders_.take_input(key) : borders_.take_gradient(key));
    const std::optional<StagePlace> next = placement.neighbour(own, forward ? 1 : -1);
    if (!next) return;
    Piece piece{action.chunk, action.microbatch, !forward};
    if (!forward && next->rank != rank_) piece = {};
    if (forward) borders_.leave_output(action.microbatch, own, *next, piece);
    else borders_.leave_gradient(action.microbatch, own, *next, piece);
    if (piece.chunk >= 0) held_.push_back(piece);
  }

  // Records that this action's computation reads `piece`. Its wait for the receive also completed the sends of the
  // same batched call; settle() records them before the computation.
  void take(const Piece& piece) {
    if (const auto found = std::find(held_.begin(), held_.end(), piece); found != held_.end()) {
      read(piece, computes(), "the neighbour chunk's " + name_);
      held_.erase(found);
    }
    settle();
  }

  void exchange(const Action* begin, const Action* end) {
    const auto call = std::make_shared<P2pCall>();
    for (const Action* action = begin; action != end; ++action) {
      Piece& piece = borders_.slot(*action);
      if (!is_send(action->kind)) piece = {};
    }
    for (const Action* action = begin; action != end; ++action) borders_.issued(*action, call);
  }

  // Records the end of sends: Borders no longer holds tensors whose send has completed.
  void settle() {
    std::vector<Piece> present;
    borders_.for_each([&](const Piece& piece) { present.push_back(piece); });
    std::erase_if(held_, [&](const Piece& piece) {
      if (std::find(present.begin(), present.end(), piece) != present.end()) return false;
      read(piece, waits(), "its send_forward, waited for in " + name_);
      return true;
    });
  }
  void read(const Piece& piece, int64_t until, std::string what) {
    PassReads& owner = of(piece.microbatch, piece.chunk);
    (piece.gradient ? owner.input_gradient : owner.output) = {until, std::move(what)};
  }

  const PipelineTable& table_;
  const int rank_;
  ReadsOfPasses reads_;
  Borders<Piece, P2pCall> borders_;
  std::vector<Piece> held_;
  size_t at_ = 0;
  std::string name_;
};

void check_shape(const GraphPlan& plan, const PipelineTable& table, const std::string& who) {
  const auto chunks = static_cast<size_t>(table.num_chunks),
             microbatches = static_cast<size_t>(table.num_microbatches);
  MPX_CHECK(plan.instance_of.size() == chunks && plan.layers_of_chunk.size() == chunks, "plan", who,
            "the plan is for ", plan.instance_of.size(), " chunks, the table for ", chunks,
            "; plan the graphs of this table");
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    MPX_CHECK(plan.instance_of[chunk].size() == microbatches, "plan", who, "chunk ", chunk, " has instances for ",
              plan.instance_of[chunk].size(), " microbatches of ", microbatches, "; plan the graphs of this table");
    for (const int instance : plan.instance_of[chunk]) {
      if (plan.layers_of_chunk[chunk] == 0 && instance == -1) continue;
      MPX_CHECK(instance >= 0 && instance < plan.num_instances, "plan", who, "instance ", instance, " of chunk ",
                chunk, " is none of ", plan.num_instances, "; plan more instances");
    }
  }
}

struct PassName {
  size_t chunk, microbatch;
};
std::string to_string(const PassName& pass) {
  return base::concat("microbatch ", pass.microbatch, " of chunk ", pass.chunk);
}

// No pass may start in an instance before all buffers of the previous pass have been read. Otherwise the replays of
// two graphs with a shared pool would overlap.
void check_writes(const GraphPlan& plan, const ReadsOfPasses& reads, const std::string& who) {
  std::map<int64_t, PassName> forwards;
  for (size_t chunk = 0; chunk < reads.size(); ++chunk) {
    for (size_t m = 0; m < reads[chunk].size(); ++m) forwards[reads[chunk][m].written] = {chunk, m};
  }
  std::map<int, PassName> holder;  // latest pass of each instance
  for (const auto& [written, pass] : forwards) {
    const int instance = plan.instance_of[pass.chunk][pass.microbatch];
    if (instance < 0) continue;
    const auto before = holder.find(instance);
    if (before != holder.end()) {
      const PassReads& old = reads[before->second.chunk][before->second.microbatch];
      const std::pair<const char*, const PassReads::Reader*> buffers[] = {
          {"input", &old.input}, {"output", &old.output}, {"input gradient", &old.input_gradient}};
      for (const auto& [name, reader] : buffers) {
        MPX_CHECK(reader->until < written, "plan", who, "the ", name, " in instance ", instance, " (",
                  to_string(before->second), ") is overwritten by the forward of ", to_string(pass), " (action ",
                  written / 2, ") before its last read: ", reader->what, "; plan another instance for it");
      }
    }
    holder[instance] = pass;
  }
}

// Graphs of one pass share a pool, so they must be captured in replay order. All layers of a pass are consecutive:
// forwards from the first layer, backwards and weight actions from the last.
void check_captures(const GraphPlan& plan, const PipelineTable& table, int pp_rank, const std::string& who) {
  auto next = plan.captures.begin();
  std::map<std::pair<int, int>, int> first_user;
  for (const Action& action : table.ranks[static_cast<size_t>(pp_rank)]) {
    if (!is_compute(action.kind)) continue;
    const auto chunk = static_cast<size_t>(action.chunk);
    const int instance = plan.instance_of[chunk][static_cast<size_t>(action.microbatch)],
              count = plan.layers_of_chunk[chunk];
    if (count == 0) continue;
    const int user = first_user.try_emplace({action.chunk, instance}, action.microbatch).first->second;
    if (user != action.microbatch) continue;
    for (int i = 0; i < count; ++i) {
      const int layer = action.kind == ActionKind::forward ? i : count - 1 - i;
      const GraphCapture expected{action.kind, action.chunk, layer, instance, action.microbatch};
      MPX_CHECK(next != plan.captures.end() && *next == expected, "plan", who, "the ", action_name(action.kind),
                " of layer ", layer, " of chunk ", action.chunk, " for instance ", instance,
                " must be captured in microbatch ", action.microbatch, ", as capture ", next - plan.captures.begin(),
                "; capture in the table's order");
      ++next;
    }
  }
  MPX_CHECK(next == plan.captures.end(), "plan", who, plan.captures.end() - next,
            " captures belong to no instance's first pass; leave them out");
  std::set<int> used;
  for (const auto& [pair, microbatch] : first_user) used.insert(pair.second);
  for (int instance = 0; instance < plan.num_instances; ++instance) {
    MPX_CHECK(used.contains(instance), "plan", who, "no microbatch takes instance ", instance, "; leave it out");
  }
}

}  // namespace

ReadsOfPasses pass_reads(const PipelineTable& table, int pp_rank) { return Walk(table, pp_rank).run(); }

void verify_graphs(const GraphPlan& plan, const PipelineTable& table, int pp_rank) {
  const std::string who = base::concat("graphs of pipeline rank ", pp_rank, ": ");
  check_shape(plan, table, who);
  const auto reads = pass_reads(table, pp_rank);
  check_writes(plan, reads, who);
  check_captures(plan, table, pp_rank, who);
}

}  // namespace metroplex::plan

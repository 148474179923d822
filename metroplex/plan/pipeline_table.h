// A whole pipeline schedule as data: for each pp rank the list of its actions, in order. Built by schedules/,
// proven by verify.h, executed by pipeline/, replayed by timeline.h, drawn by draw.h.
//
// A border between stages of two ranks is crossed by explicit send and recv actions. A rank that holds both stages
// hands the tensor over itself, without actions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace metroplex::plan {

// Which pipeline rank holds which stage of the model. Stages are numbered along the model: the first takes the batch,
// the last makes the loss.

struct StagePlace {
  int rank = 0;   // pp index
  int chunk = 0;  // on that rank, in the order of the model
  bool operator==(const StagePlace&) const = default;
};

// Each chunk is one pass over the ranks: always from the first rank to the last (Megatron-LM's virtual stages), or,
// with `v_shaped`, alternately forth and back, so that the rank at a turn holds both sides of a stage border (the V
// of zero-bubble schedules, Qi et al. 2024, arXiv:2405.15362).
struct StagePlacement {
  int ranks = 1;   // pp
  int chunks = 1;  // a rank, vpp
  bool v_shaped = false;

  int stages() const { return ranks * chunks; }
  int stage_of(StagePlace at) const { return at.chunk * ranks + along(at.chunk, at.rank); }
  StagePlace place_of(int stage) const { return {along(stage / ranks, stage % ranks), stage / ranks}; }
  bool first(StagePlace at) const { return stage_of(at) == 0; }
  bool last(StagePlace at) const { return stage_of(at) == stages() - 1; }
  // Where the next stage (by = 1) or the previous one (by = -1) is; none beyond the ends of the model.
  std::optional<StagePlace> neighbour(StagePlace at, int by) const {
    const int stage = stage_of(at) + by;
    return stage < 0 || stage >= stages() ? std::nullopt : std::optional(place_of(stage));
  }
  // The rank of that stage where it is another rank, to send to or receive from; -1: the same rank, or the model
  // ends.
  int peer(StagePlace at, int by) const {
    const std::optional<StagePlace> other = neighbour(at, by);
    return other && other->rank != at.rank ? other->rank : -1;
  }

 private:
  int along(int chunk, int rank) const { return v_shaped && chunk % 2 == 1 ? ranks - 1 - rank : rank; }
};

// One action of a pipeline rank. A schedule is a list of these per rank: the executor runs it,
// verify() proves it, the timeline replays it and draw.h draws it.
//
// (microbatch, chunk) always names the action's own stage: recv_forward(m, c) brings the input of the forward of
// (m, c) on this rank, send_forward(m, c) takes away the output of that forward; recv_backward(m, c) brings the
// gradient of that output, send_backward(m, c) takes away the gradient of that input.

enum class ActionKind {
  forward,
  backward,  // gradient of the input, and of the weights unless the table has weight actions
  weight,    // the weight gradient alone, split off from backward (zero-bubble schedules)
  send_forward,
  recv_forward,
  send_backward,
  recv_backward,
  free,  // the output of forward (microbatch, chunk) has been sent: its storage may be dropped
};

struct Action {
  ActionKind kind = ActionKind::forward;
  int microbatch = 0;
  int chunk = 0;   // virtual stage on this rank, 0 .. num_chunks-1
  int peer = -1;   // pp index of the other side of a send or recv, else -1
  int batch = -1;  // neighbours in the list with the same number >= 0 are issued together, as one batched p2p call

  bool operator==(const Action&) const = default;
};

constexpr bool is_send(ActionKind kind) {
  return kind == ActionKind::send_forward || kind == ActionKind::send_backward;
}
constexpr bool is_recv(ActionKind kind) {
  return kind == ActionKind::recv_forward || kind == ActionKind::recv_backward;
}
constexpr bool is_p2p(ActionKind kind) { return is_send(kind) || is_recv(kind); }
constexpr bool is_compute(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::backward || kind == ActionKind::weight;
}

// "forward", "recv_backward", ...: the enumerator's own name.
const char* action_name(ActionKind kind);

struct PipelineTable {
  int num_stages = 1;        // pipeline-parallel ranks, pp
  int num_chunks = 1;        // model chunks a rank holds, vpp
  bool v_shaped = false;     // see StagePlacement
  int num_microbatches = 1;  // of one step, per data-parallel rank
  std::vector<std::vector<Action>> ranks;
  std::string name;
  bool forward_only = false;  // evaluation: no backward, no gradient p2p
  // Per rank, the (microbatch, chunk) forwards that the builder promises to hold at most; empty: no promise.
  std::vector<int> live_activation_bounds;

  StagePlacement placement() const { return {num_stages, num_chunks, v_shaped}; }

  // Whether weight gradients are actions of their own.
  bool splits_backward() const {
    for (const std::vector<Action>& actions : ranks) {
      for (const Action& action : actions) {
        if (action.kind == ActionKind::weight) return true;
      }
    }
    return false;
  }

  bool operator==(const PipelineTable&) const = default;
};

// Simulates a table's p2p calls as rendezvous. A call is one p2p action or a batch of neighbouring ones; a rank
// blocks in it until every transfer of the call has met its counterpart, in a call of the peer at the same time.
// Shared by verify.h (no deadlock?) and timeline.h (at what time?).

// The same number on both sides of a transfer, different for all transfers of a table.
int64_t transfer_id(const PipelineTable& table, int rank, const Action& action);

// One past the last action of the call that starts at `begin` (a p2p action).
size_t call_end(const std::vector<Action>& actions, size_t begin);

// For each rank the index of the action it is stuck at, or the size of its list: all at the end means no deadlock.
// Expects peers, microbatches and chunks in range.
std::vector<size_t> run_rendezvous(const PipelineTable& table);

}  // namespace metroplex::plan

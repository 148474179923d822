// A complete pipeline schedule as data: an ordered list of actions per pp rank. schedules/ builds it, verify.h checks
// it, pipeline/ executes it, timeline.h replays it and draw.h draws it.
//
// Explicit send and recv actions cross a border between stages of two ranks. If one rank holds both stages, it passes
// the tensor locally, without actions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace metroplex::plan {

// Mapping of model stages to pipeline ranks. Stages are numbered along the model: the first consumes the batch, the
// last computes the loss.

struct StagePlace {
  int rank = 0;   // pp index
  int chunk = 0;  // chunk on that rank, in model order
  bool operator==(const StagePlace&) const = default;
};

// Each chunk is one pass over the ranks, always from the first rank to the last (Megatron-LM's virtual stages). With
// `v_shaped` the direction alternates, so the rank at a turn holds both sides of a stage border. This is the V of
// zero-bubble schedules (Qi et al. 2024, arXiv:2405.15362).
struct StagePlacement {
  int ranks = 1;   // pp
  int chunks = 1;  // per rank, vpp
  bool v_shaped = false;

  int stages() const { return ranks * chunks; }
  int stage_of(StagePlace at) const { return at.chunk * ranks + along(at.chunk, at.rank); }
  StagePlace place_of(int stage) const { return {along(stage / ranks, stage % ranks), stage / ranks}; }
  bool first(StagePlace at) const { return stage_of(at) == 0; }
  bool last(StagePlace at) const { return stage_of(at) == stages() - 1; }
  // Returns the place of the next stage (by = 1) or the previous one (by = -1); none beyond the ends of the model.
  std::optional<StagePlace> neighbour(StagePlace at, int by) const {
    const int stage = stage_of(at) + by;
    return stage < 0 || stage >= stages() ? std::nullopt : std::optional(place_of(stage));
  }
  // Returns the rank of that stage if it is a different rank; -1 if it is the same rank or the model ends.
  int peer(StagePlace at, int by) const {
    const std::optional<StagePlace> other = neighbour(at, by);
    return other && other->rank != at.rank ? other->rank : -1;
  }

 private:
  int along(int chunk, int rank) const { return v_shaped && chunk % 2 == 1 ? ranks - 1 - rank : rank; }
};

// One action of a pipeline rank.
//
// (microbatch, chunk) always identifies the action's own stage. recv_forward(m, c) receives the input of the forward
// of (m, c) on this rank, and send_forward(m, c) sends its output. recv_backward(m, c) receives the gradient of that
// output, and send_backward(m, c) sends the gradient of that input.
enum class ActionKind {
  forward,
  backward,  // gradient of the input, and of the weights unless the table has weight actions
  weight,    // only the weight gradient, split off from backward (zero-bubble schedules)
  send_forward,
  recv_forward,
  send_backward,
  recv_backward,
  free,  // the output of forward (microbatch, chunk) has been sent; its storage may be freed
};

struct Action {
  ActionKind kind = ActionKind::forward;
  int microbatch = 0;
  int chunk = 0;   // virtual stage on this rank, 0 .. num_chunks-1
  int peer = -1;   // pp index of the peer of a send or recv, else -1
  int batch = -1;  // adjacent actions with the same number >= 0 form one batched p2p call
  // This forward and the next action, a backward of another microbatch, advance in turns (device/turns.h).
  bool in_turns = false;

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

// Returns the enumerator's name, e.g. "recv_backward".
const char* action_name(ActionKind kind);

struct PipelineTable {
  int num_stages = 1;        // pipeline-parallel ranks, pp
  int num_chunks = 1;        // model chunks per rank, vpp
  bool v_shaped = false;     // see StagePlacement
  int num_microbatches = 1;  // per step and data-parallel rank
  std::vector<std::vector<Action>> ranks;
  std::string name;
  bool forward_only = false;  // evaluation: no backward, no gradient p2p
  // Per rank, the builder's upper bound on live (microbatch, chunk) forwards; empty: none given.
  std::vector<int> live_activation_bounds;

  StagePlacement placement() const { return {num_stages, num_chunks, v_shaped}; }

  // True if weight gradients are separate actions.
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

// Simulates a table's p2p calls as rendezvous. A call is one p2p action or a batch of adjacent ones. A rank blocks in
// it until every transfer has met its counterpart in a concurrent call of the peer. verify.h uses it to detect
// deadlocks, timeline.h to compute times.
//
// Returns a number that is equal on both sides of a transfer and unique among the transfers of a table.
int64_t transfer_id(const PipelineTable& table, int rank, const Action& action);

// Returns the index after the last action of the call that starts at `begin` (a p2p action).
size_t call_end(const std::vector<Action>& actions, size_t begin);

// Returns, for each rank, the index of the action that blocks it, or the size of its list. Without deadlock all ranks
// reach the end. Expects valid peers, microbatches and chunks.
std::vector<size_t> run_rendezvous(const PipelineTable& table);

}  // namespace metroplex::plan

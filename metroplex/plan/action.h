// One thing a pipeline rank does. A schedule is nothing but lists of these (pipeline_table.h): the executor runs
// them, verify() proves them, the timeline replays them, the pictures draw them.
//
// (microbatch, chunk) always names the action's own stage: recv_forward(m, c) brings the input of the forward of
// (m, c) on this rank, send_forward(m, c) takes away the output of that forward; recv_backward(m, c) brings the
// gradient of that output, send_backward(m, c) takes away the gradient of that input.
#pragma once

namespace metroplex::plan {

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

}  // namespace metroplex::plan

// The kinds of groups that training uses, in one table: which axes vary inside a group and what the group is for.
// From the most talkative to the least, which is also the order in which they want to stay inside a node.
#pragma once

#include "topology/axis.h"

namespace metroplex::topology {

struct GroupKind {
  AxisSet axes;
  const char* purpose;
};

inline constexpr GroupKind kGroupKinds[] = {
    {{Axis::tp}, "splits every matrix; talks inside every layer"},
    {{Axis::etp}, "splits each expert's matrices; talks inside every expert layer"},
    {{Axis::cp}, "splits the sequence; exchanges keys and values in attention"},
    {{Axis::tp, Axis::cp}, "all ranks that hold parts of the same sequences"},
    {{Axis::ep}, "splits the experts; tokens travel to them and back"},
    {{Axis::etp, Axis::ep}, "all ranks that tokens of an expert layer may visit"},
    {{Axis::edp}, "copies of the same experts; averages their gradients"},
    {{Axis::dp}, "copies of the same weights on other data"},
    {{Axis::dp, Axis::cp}, "averages the dense gradients, shards the optimizer"},
    {{Axis::tp, Axis::dp}, "sums routing statistics over data"},
    {{Axis::tp, Axis::dp, Axis::cp}, "one pipeline stage; shares the amax of fp8"},
    {{Axis::pp}, "the stages of one pipeline; hands activations on"},
    {{Axis::tp, Axis::pp}, "one copy of the dense model; the gradient norm is summed here"},
    {{Axis::etp, Axis::ep, Axis::pp}, "one copy of the experts; their gradient norm is summed here"},
};

}  // namespace metroplex::topology

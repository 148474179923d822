// A libtorch operator call on a tape: below autograd, and replayed into the memory of the recorded results.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "cuda/graph/tape.h"

namespace metroplex::cuda {

// One that has been run once.
struct LibraryCall {
  const c10::OperatorHandle& op;
  std::vector<c10::IValue> arguments, results;
};

// "aten::mm", "aten::add.Tensor"
std::string name_of(const c10::OperatorHandle& op);

// Why it cannot be in a graph: the host reads values, or shapes depend on values; empty: it can.
std::string unfit_for_graph(const c10::OperatorHandle& op);

// Whether every result is a view of an argument: it reads no value.
bool makes_views(const c10::OperatorHandle& op);

// Whether its argument i has values that it reads, not only memory that it writes.
bool reads_argument(const c10::OperatorHandle& op, size_t i);

// Whether it only makes views, or only allocates: there is nothing to replay.
bool computes_nothing(const LibraryCall& call);

// Name, reads, writes and scalars; tensors are those of the call.
TapeOperation operation_of(const LibraryCall& call);

// Replays it on the same memory, which it does not keep alive: by the operator's out variant where there is one, else
// by a copy of the results. The same bits.
std::function<void()> repeated(const LibraryCall& call);

}  // namespace metroplex::cuda

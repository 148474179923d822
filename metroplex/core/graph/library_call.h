// A libtorch operator call on a tape, below autograd. It is replayed into the memory of the recorded results.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "graph/tape.h"

namespace metroplex::graph {

// A call that has run once.
struct LibraryCall {
  const c10::OperatorHandle& op;
  std::vector<c10::IValue> arguments, results;
};

// For example "aten::mm" or "aten::add.Tensor".
std::string name_of(const c10::OperatorHandle& op);

// Returns why the operator cannot be captured: the host reads values, or shapes depend on values. Empty: it can.
std::string unfit_for_graph(const c10::OperatorHandle& op);

// Returns whether every result is a view of an argument, so that no value is read.
bool makes_views(const c10::OperatorHandle& op);

// Returns whether the operator reads the values of argument i instead of only writing its memory.
bool reads_argument(const c10::OperatorHandle& op, size_t i);

// Returns whether the call only makes views or only allocates; then there is nothing to replay.
bool computes_nothing(const LibraryCall& call);

struct CallTensors {
  std::vector<at::Tensor> reads, writes;
};
CallTensors find_tensors(const LibraryCall& call);

// Returns name, reads, writes and scalars; the tensors are those of the call.
TapeOperation make_operation(const LibraryCall& call);

// Returns a closure that repeats the call on the same memory, without owning it. It uses the operator's out variant,
// or copies the results if there is none. The bits are the same.
std::function<void()> repeated(const LibraryCall& call);

}  // namespace metroplex::graph

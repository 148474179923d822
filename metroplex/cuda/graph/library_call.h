// A call of an operator of libtorch's as it stands on a tape: below autograd, into memory that is there.
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

// Why it cannot be in a graph: the host would see values, or shapes follow from values; empty: it can.
std::string unfit_for_graph(const c10::OperatorHandle& op);

// Whether every result is a view of an argument: it reads no value.
bool makes_views(const c10::OperatorHandle& op);

// Whether it only looks at memory anew, or only takes some: nothing to run again.
bool computes_nothing(const LibraryCall& call);

// Name, reads, writes and scalars; tensors are those of the call.
TapeOperation operation_of(const LibraryCall& call);

// Runs it again on the same memory, which it does not hold: by the form of the operator that writes where it is told
// to, where there is one; else the results are copied there. The same bits.
std::function<void()> repeated(const LibraryCall& call);

}  // namespace metroplex::cuda

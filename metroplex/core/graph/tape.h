// The CPU's graph: the operations of a capture in order, which are replayed on the same memory without the code that
// issued them. It contains libtorch's operators below autograd, our own kernels, and communication. Views and
// allocations are omitted: the recorded tensors are views of memory that stays allocated.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "graph/graph.h"

namespace metroplex::graph {

// A host value among the arguments of an operation, which a replay repeats. For our own kernels: the numbers, by
// name. For libtorch's operators: all arguments except tensors, as text, by the schema's names. "constant" is the
// value of a one-element tensor that only the host wrote.
struct TapeScalar {
  std::string name;
  std::variant<int64_t, double, std::string> value;
  bool operator==(const TapeScalar&) const = default;
};
std::string text_of(const TapeScalar& scalar);

// A group whose calls are on tapes. Plain data, so that it can be sent between processes.
struct TapeGroup {
  std::string purpose;
  std::vector<int> ranks;  // global, in group order
  friend auto operator<=>(const TapeGroup&, const TapeGroup&) = default;
};

struct TapeOperation {
  std::string name;   // kernel, collective or libtorch operator with overload ("aten::mm.out")
  std::string group;  // group of a communication call and of its "wait"
  std::string place;  // issuer of the operation: TapeRecorder::place
  // Weak aliases, which do not keep memory alive. A tensor updated in place is in both.
  std::vector<at::Tensor> reads, writes;
  std::vector<TapeScalar> scalars;
  // Identifies a communication call and its "wait"; null for all other operations. Between the two, `reads` must not
  // be written and `writes` must not be accessed.
  const void* work = nullptr;
  std::string unfit;  // why it cannot be captured; empty: it can
  std::function<void()> run;
  std::string arguments{};  // argument_bytes of our own kernel
};

// A memory range [begin, end) in bytes.
struct TapeSpan {
  uintptr_t begin = 0, end = 0;
  bool overlaps(const TapeSpan& other) const { return begin < other.end && other.begin < end; }
};
// Range from the first to the last element of x; empty if x has no elements.
TapeSpan to_span(const at::Tensor& x);
// A tensor of the same form on the same memory, without ownership.
at::Tensor weak_alias(const at::Tensor& x);

// Memory that the tape uses but that belongs neither to its pool nor to the tape.
struct TapeExternal {
  TapeSpan span;  // range of the storage
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  size_t first_used;  // index of the first operation that uses it
};

struct Tape {
  std::vector<TapeOperation> operations;
  std::vector<TapeExternal> externals;
  std::vector<at::Tensor> constants;  // the tensors of "constant" scalars

  // Runs all operations. Throws base::Error("cuda graph", ...) if memory of an external has been freed since the
  // capture.
  void replay() const;
  GraphSize size() const;
};

// "operation 12, aten::mm.out of layer 3"
std::string describe(const Tape& tape, size_t operation);

}  // namespace metroplex::graph

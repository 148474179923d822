// The CPU's graph: the operations of a capture in order, to be replayed on the same memory without the code that
// issued them. Recorded are libtorch's operators below autograd, our own kernels, and communication. Views and
// allocations are not: the recorded tensors are views of memory that stays allocated.
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

#include "cuda/graph/graph.h"

namespace metroplex::cuda {

// A host value among the arguments of an operation, which a replay repeats. Of our own kernels the numbers, by name;
// of libtorch's operators all arguments that are not tensors, as text, by the schema's names; and "constant", the
// value of a one-element tensor that was written by the host and by no operation.
struct TapeScalar {
  std::string name;
  std::variant<int64_t, double, std::string> value;
  bool operator==(const TapeScalar&) const = default;
};
std::string text_of(const TapeScalar& scalar);

// A group whose calls are on tapes. Plain data, so that it can travel between processes.
struct TapeGroup {
  std::string purpose;
  std::vector<int> ranks;  // global, in group order
  friend auto operator<=>(const TapeGroup&, const TapeGroup&) = default;
};

struct TapeOperation {
  std::string name;   // with its overload for libtorch's ("aten::mm.out"); of the kernel or the collective
  std::string group;  // of a communication call; "wait" and what it waits for have the same
  std::string place;  // who issued it: TapeRecorder::place
  // Weak aliases, which do not keep memory alive. A tensor updated in place is in both.
  std::vector<at::Tensor> reads, writes;
  std::vector<TapeScalar> scalars;
  // Of a communication call and of its "wait", the same; null for all else. Between the two, `reads` may not be
  // written, nor `writes` touched.
  const void* work = nullptr;
  std::string unfit;  // why it cannot be captured; empty: it can
  std::function<void()> run;
  std::string arguments{};  // of an own kernel: argument_bytes
};

// Bytes [begin, end) of memory.
struct TapeSpan {
  uintptr_t begin = 0, end = 0;
  bool overlaps(const TapeSpan& other) const { return begin < other.end && other.begin < end; }
};
// From the first to the last element of x; empty where x has none.
TapeSpan span_of(const at::Tensor& x);
// A tensor of the same form on the same memory, which it does not hold.
at::Tensor weak_alias(const at::Tensor& x);

// Memory that the tape reads or writes and that belongs neither to its pool nor to the tape.
struct TapeExternal {
  TapeSpan span;  // of the storage
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  size_t first_used;  // operation
};

struct Tape {
  std::vector<TapeOperation> operations;
  std::vector<TapeExternal> externals;
  std::vector<at::Tensor> constants;  // of the scalars of that name

  // Runs all of it. Throws base::Error("cuda graph", ...) where memory of an external has been given back since.
  void replay() const;
  GraphSize size() const;
};

// "operation 12, aten::mm.out of layer 3"
std::string describe(const Tape& tape, size_t operation);

}  // namespace metroplex::cuda

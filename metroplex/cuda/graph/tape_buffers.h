// Graphs that share memory, replayed in another order than they were captured in: does every read still see the value
// that it saw in the capture?
#pragma once

#include <string>
#include <vector>

#include "cuda/graph/tape_findings.h"

namespace metroplex::cuda {

// One graph, or eager work between them that was recorded as one.
struct Replayed {
  std::string name;  // in findings
  const Tape* tape = nullptr;
  std::vector<at::Tensor> inputs;  // that are copied in ahead of each replay; their memory need not be of a pool
};

// `captured`: all of them in the order of their captures, each of which was a run. `replays`: indices of it in the
// order of the replays that follow. A read of inputs, or of memory of `pools`, has to see what the same operation (or
// the same copying in) wrote there that had in the capture; memory of neither carries state from one replay to the
// next and may change. Names buffer, writers and reader.
std::vector<Finding> check_replays(const std::vector<Replayed>& captured, const std::vector<size_t>& replays,
                                   const std::vector<const TapePool*>& pools);

}  // namespace metroplex::cuda

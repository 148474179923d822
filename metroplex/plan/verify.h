// Proves a pipeline table before anything runs it: every forward, backward and weight action is there once;
// everything is received before it is used and computed before it is sent; both sides of every border agree on what
// crosses it and in which order; there is no deadlock even if a send blocks until its receive is posted (rendezvous);
// and no rank holds more forwards than the builder promised.
#pragma once

#include <string>
#include <vector>

#include "plan/pipeline_table.h"

namespace metroplex::plan {

struct VerifyReport {
  std::vector<std::string> faults;  // each names rank, action and rule; empty: the table is right
  // Per rank, the most (microbatch, chunk) forwards that waited for their backward at a time; 0 in forward-only.
  std::vector<int> peak_live_activations;
  // Per rank, the most received tensors (inputs and gradients) that waited for their use at a time.
  std::vector<int> peak_received;
  bool ok() const { return faults.empty(); }
};

// Never throws: a table of any content gets a report.
VerifyReport inspect_table(const PipelineTable& table);

// Throws base::Error("plan") with the first faults; returns the report of a right table.
VerifyReport verify(const PipelineTable& table);

}  // namespace metroplex::plan

// Checks a pipeline table before it runs. Every forward, backward and weight action exists exactly once. Every tensor
// is received before its use and computed before its send. Both sides of every border agree on the transfers and
// their order. There is no deadlock even if a send blocks until its receive is posted (rendezvous). No rank holds
// more forwards than the builder's bound.
#pragma once

#include <string>
#include <vector>

#include "plan/pipeline_table.h"

namespace metroplex::plan {

struct VerifyReport {
  std::vector<std::string> faults;  // each contains rank, action and rule; empty: the table is valid
  // Per rank, the maximum number of (microbatch, chunk) forwards that wait for their last backward or weight action;
  // 0 if forward-only.
  std::vector<int> peak_live_activations;
  // Per rank, the maximum number of received tensors (inputs and gradients) that wait for their use.
  std::vector<int> peak_received;
  bool ok() const { return faults.empty(); }
};

// Never throws; accepts any table content.
VerifyReport inspect_table(const PipelineTable& table);

// Throws base::Error("plan") with the first faults; otherwise returns the report.
VerifyReport verify(const PipelineTable& table);

}  // namespace metroplex::plan

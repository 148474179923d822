// Which ranks compute which documents of a global batch, where the number of ranks that share a sequence differs
// from document to document (hybrid context parallelism). Integers only. A document is a sequence of its own where
// attention stays inside documents, so long ones are shared by groups of 2, 4, ... ranks and short ones stay whole.
// Every rank makes the same plan from the lengths of all documents, and runs its microbatches in the order of the
// plan, which is one for all: of the microbatches that are not done, the first has all of its ranks waiting for it or
// on their way to it, so that none waits forever.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/sequence_cut.h"

namespace metroplex::plan {

struct HybridRequest {
  int ranks = 1;               // of dp x cp
  int64_t max_tokens = 1;      // of one microbatch on one rank
  int64_t multiple = 1;        // of the tokens of a microbatch on every rank
  double pair_cost = 0;        // of a query and a key that it sees, where a token costs 1
  double microbatch_cost = 0;  // of each rank beside its tokens and pairs
};

// Whole documents of one sample.
struct HybridMicrobatch {
  int64_t sample = 0;  // of the global batch
  std::vector<PositionRun> documents;
  // First positions of other documents of the sample, whose results nobody uses, where the documents' tokens are no
  // multiple; and all that a rank has for which there is no document.
  std::vector<PositionRun> fillers;
  int first_rank = 0, ranks = 1;  // a multiple of `ranks`, and a power of two
  bool counts = false;            // the first of its sample
  double cost = 0;                // of each rank
  bool runs_on(int rank) const { return rank >= first_rank && rank < first_rank + ranks; }
  // Documents and fillers by position.
  std::vector<PositionRun> pieces() const;
};

struct HybridPlan {
  std::vector<HybridMicrobatch> microbatches;  // every rank is in one at least
  std::vector<double> load;                    // cost of each rank, without what it waits
  double span = 0;      // from the first start to the last end, where ranks wait for each other
  double mean() const;  // of the loads
  // The numbers of a rank's microbatches, in order.
  std::vector<size_t> of_rank(int rank) const;
};

// `documents`: of each sample the lengths, in order. Of all plans that it tries, takes the first whose span is within
// 2 % of the shortest: longest first, each to the group that is free first, from plans in which documents are on the
// fewest ranks that max_tokens allows and as many as fit are put together, to those in which neither takes longer
// than a small share of the mean. Throws base::Error("plan") for lengths below 1, a sample that is no multiple, and a
// document that does not fit on the largest group.
HybridPlan plan_hybrid_context(const DocumentLengths& documents, const HybridRequest& request);

}  // namespace metroplex::plan

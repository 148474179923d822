// Hybrid context parallelism: assigns the documents of a global batch to ranks, with a different number of ranks per
// document. Attention is restricted to documents, so each document is an independent sequence. Groups of 2, 4, ...
// ranks share long documents, and short ones stay on one rank. Every rank computes the same plan from the lengths of
// all documents. All ranks run their microbatches in the order of the plan. The first unfinished microbatch therefore
// always gets all of its ranks, and no deadlock is possible. Integers only, except costs.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/sequence_cut.h"

namespace metroplex::plan {

struct HybridRequest {
  int ranks = 1;               // dp x cp
  int64_t max_tokens = 1;      // per microbatch and rank
  int64_t multiple = 1;        // divisor of the tokens of a microbatch on every rank
  double pair_cost = 0;        // cost of a visible query-key pair; a token costs 1
  double microbatch_cost = 0;  // fixed cost per rank and microbatch
};

// Contains whole documents of one sample.
struct HybridMicrobatch {
  int64_t sample = 0;  // index in the global batch
  std::vector<PositionRun> documents;
  // Leading positions of other documents of the sample, whose results are discarded. They pad the tokens to
  // `multiple`, and are the only content of a rank without documents.
  std::vector<PositionRun> fillers;
  int first_rank = 0, ranks = 1;  // first_rank is a multiple of `ranks`, which is a power of two
  bool counts = false;            // first microbatch of its sample
  double cost = 0;                // per rank
  bool runs_on(int rank) const { return rank >= first_rank && rank < first_rank + ranks; }
  // Returns documents and fillers, sorted by position.
  std::vector<PositionRun> pieces() const;
};

struct HybridPlan {
  std::vector<HybridMicrobatch> microbatches;  // every rank is in at least one
  std::vector<double> load;                    // cost per rank, without waiting
  double span = 0;                             // time from the first start to the last end, including waits
  double mean() const;
  // Returns the indices of a rank's microbatches, in order.
  std::vector<size_t> of_rank(int rank) const;
};

// `documents` holds the document lengths of each sample, in order. Tries several plans and returns the first whose
// span is within 2 % of the shortest. Each assigns documents in descending order to the group that is free first. The
// first plan uses the fewest ranks per document that max_tokens allows and packs as many documents as fit. Later
// plans limit both to decreasing shares of the mean load. Throws base::Error("plan") for lengths < 1, a sample length
// that is not a multiple, or a document that does not fit on the largest group.
HybridPlan plan_hybrid_context(const DocumentLengths& documents, const HybridRequest& request);

}  // namespace metroplex::plan

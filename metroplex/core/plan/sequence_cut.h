// Partitions a sequence over context-parallel ranks and computes whose keys their queries see. Integers only. The
// attention work of a rank is its area: the number of visible (query, key) pairs. A query sees the keys of its
// document up to itself. Every position belongs to exactly one rank.
//   - contiguous: rank i has the i-th of cp equal ranges; the last rank has the largest area.
//   - zigzag: Megatron's. Rank i has chunks i and 2 cp - 1 - i of 2 cp equal chunks, balanced for one document.
//   - balanced: equal tokens and area for documents of any lengths. The ends of the sequence are joined into a
//     circle, and one arc after another is assigned to a rank. Arcs with the mean number of tokens have the mean
//     area on average. Their area changes little from one start to the next, so one of them has both means. For a
//     single document this gives pairs like zigzag's. Arcs end between documents if the slack allows it, because a
//     document on one rank needs no exchange.
#pragma once

#include <cstdint>
#include <vector>

#include "config/parallel.h"

namespace metroplex::plan {

using config::SequenceCutKind;

struct PositionRun {
  int64_t first = 0, count = 0;
  int64_t end() const { return first + count; }
  friend bool operator==(const PositionRun&, const PositionRun&) = default;
};
using PositionRuns = std::vector<PositionRun>;  // ascending, non-empty, not adjacent

int64_t num_positions(const PositionRuns& runs);
// Returns the union of ranges in any order; they may overlap.
PositionRuns merged(std::vector<PositionRun> runs);

// Document lengths of each sample, in order. All samples of a microbatch share one partition, so the area of a
// position is summed over samples. All samples have the same total length.
using DocumentLengths = std::vector<std::vector<int64_t>>;

struct SequenceCutRequest {
  SequenceCutKind kind = SequenceCutKind::zigzag;
  int cp = 1;
  // balanced only: maximum relative deviation of a rank's tokens (never below one token) and area from the mean, used
  // if it saves an exchange.
  double token_slack = 0, area_slack = 0.02;
  int64_t multiple = 1;  // divisor of the number of tokens of every rank
};

struct SequenceCut {
  int64_t length = 0;
  std::vector<PositionRuns> ranks;
};

// Throws base::Error("plan") for inconsistent lengths, or lengths that do not fit the kind, cp or the multiple.
SequenceCut cut_sequence(const DocumentLengths& documents, const SequenceCutRequest& request);

struct CutLoad {
  std::vector<int64_t> tokens, area;
  // The maximum over ranks divided by the mean; 1 is balanced.
  double token_ratio = 1, area_ratio = 1;
};
CutLoad cut_load(const DocumentLengths& documents, const SequenceCut& cut);

// [reader][owner]: positions of `owner` whose keys are visible to a query of `reader`, including reader == owner.
std::vector<std::vector<PositionRuns>> seen_keys(const DocumentLengths& documents, const SequenceCut& cut);

}  // namespace metroplex::plan

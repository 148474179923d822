// Which tokens of a sequence each context-parallel rank holds, and whose keys its queries see. Integers only. What a
// rank computes in attention is its area: the pairs of a query and a key that the query sees, which are those of its
// own document up to itself. A cut gives every position to exactly one rank.
//   contiguous: rank i has the i-th of cp equal parts; the last has the most area.
//   zigzag: Megatron's; of 2 cp equal chunks rank i has number i and number 2 cp - 1 - i. Even for one document.
//   balanced: tokens and area both even, for documents of any lengths. Takes one arc after the other off the
//   sequence,
//     whose ends are joined to a circle: among all arcs of the mean number of tokens, the mean of the area is the
//     mean area, and it changes by little from one arc to the next, so that one of them has both. For one document
//     that gives pairs like zigzag's. Ends of arcs are put between documents where the slack allows it: a document
//     that is not cut needs no exchange.
#pragma once

#include <cstdint>
#include <vector>

#include "config/parallel.h"

namespace metroplex::plan {

using config::SequenceCutKind;

// Consecutive positions [first, first + count).
struct PositionRun {
  int64_t first = 0, count = 0;
  int64_t end() const { return first + count; }
  friend bool operator==(const PositionRun&, const PositionRun&) = default;
};
using PositionRuns = std::vector<PositionRun>;  // ascending, none empty, none touching the next

int64_t num_positions(const PositionRuns& runs);
// The union of runs in any order, which may overlap.
PositionRuns merged(std::vector<PositionRun> runs);

// Of each sample the lengths of its documents, in order. Samples of one microbatch are cut alike, so a position has
// the area of all of them; their lengths add up to the same sum.
using DocumentLengths = std::vector<std::vector<int64_t>>;

struct SequenceCutRequest {
  SequenceCutKind kind = SequenceCutKind::zigzag;
  int cp = 1;
  // balanced only: by which share of the mean the tokens of a rank may differ from it (less than one token is never
  // asked for), and its area, where that saves an exchange.
  double token_slack = 0, area_slack = 0.02;
  int64_t multiple = 1;  // of the number of tokens of every rank
};

struct SequenceCut {
  int64_t length = 0;
  std::vector<PositionRuns> ranks;
};

// Throws base::Error("plan") for lengths that do not fit each other, the kind, cp or the multiple.
SequenceCut cut_sequence(const DocumentLengths& documents, const SequenceCutRequest& request);

struct CutLoad {
  std::vector<int64_t> tokens, area;  // of each rank
  // The most of a rank over the mean; 1 is even.
  double token_ratio = 1, area_ratio = 1;
};
CutLoad cut_load(const DocumentLengths& documents, const SequenceCut& cut);

// [reader][owner]: the positions of `owner` whose keys some query of `reader` sees. Those of a rank itself are in it.
std::vector<std::vector<PositionRuns>> seen_keys(const DocumentLengths& documents, const SequenceCut& cut);

}  // namespace metroplex::plan

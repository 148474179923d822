// For sequence_cut.cpp: a sequence as pieces in which the area of a position grows by the same number from one to the
// next.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/sequence_cut.h"

namespace metroplex::plan {

// Positions first .. first + count - 1, in no sample of which a document begins but at the first.
struct SequencePiece {
  int64_t first = 0, count = 0;
  int64_t area = 0;      // of the first position; that of position first + i is area + i * samples
  int64_t earliest = 0;  // key that any query of the piece sees, in any sample
  bool begins = false;   // documents of all samples begin here
  int64_t end() const { return first + count; }
  // Of the first `of_first` positions.
  int64_t sum_of(int64_t of_first, int64_t samples) const {
    return of_first * area + samples * (of_first * (of_first - 1) / 2);
  }
};

struct SequencePieces {
  int64_t length = 0, samples = 0;
  std::vector<SequencePiece> pieces;
};

// Throws base::Error("plan") unless the lengths are above 0 and every sample's add up to the same sum.
SequencePieces sequence_pieces(const DocumentLengths& documents);

// The balanced cut, for request.kind.
std::vector<PositionRuns> balanced_cut(const SequencePieces& sequence, const SequenceCutRequest& request);

}  // namespace metroplex::plan

// For sequence_cut.cpp: splits a sequence into ranges in which the area grows by a constant from one position to the
// next.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/sequence_cut.h"

namespace metroplex::plan {

// Positions first .. first + count - 1. In every sample, a document may start only at the first position.
struct SequencePiece {
  int64_t first = 0, count = 0;
  int64_t area = 0;      // of the first position; position first + i has area + i * samples
  int64_t earliest = 0;  // first key visible to any query of the range, in any sample
  bool begins = false;   // documents of all samples start here
  int64_t end() const { return first + count; }
  // Returns the area of the first `of_first` positions.
  int64_t sum_of(int64_t of_first, int64_t samples) const {
    return of_first * area + samples * (of_first * (of_first - 1) / 2);
  }
};

struct SequencePieces {
  int64_t length = 0, samples = 0;
  std::vector<SequencePiece> pieces;
};

// Throws base::Error("plan") unless all lengths are > 0 and all samples have the same total.
SequencePieces sequence_pieces(const DocumentLengths& documents);

std::vector<PositionRuns> balanced_cut(const SequencePieces& sequence, const SequenceCutRequest& request);

}  // namespace metroplex::plan

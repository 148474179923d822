// Pictures of a cut of a sequence (sequence_cut.h): a row for every rank, which positions it holds, and what it gets
// from whom. As text for a terminal, and as SVG.
#pragma once

#include <string>

#include "plan/sequence_cut.h"

namespace metroplex::plan {

struct SequencePicture {
  DocumentLengths documents;
  std::string title;  // of the kind and the slack
  SequenceCut cut;
};

// Keys that come from other ranks: of those that some query sees, and those of the whole sequence.
struct KeyTraffic {
  int64_t seen = 0, all = 0;  // positions, summed over the readers
};
KeyTraffic key_traffic(const SequenceCut& cut, const std::vector<std::vector<PositionRuns>>& seen);

// Ends with a newline. `columns` of the bar that is the sequence. A column that a rank holds whole is '#', one that
// it holds a part of '+'; '|' in the first row is a column in which a document begins.
std::string draw_text(const SequencePicture& picture, int columns);
// A whole SVG document, about 1,000 units wide.
std::string draw_svg(const SequencePicture& picture);

}  // namespace metroplex::plan

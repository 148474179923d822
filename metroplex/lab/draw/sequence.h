// Draws a sequence partition (sequence_cut.h) as terminal text or SVG: one row per rank with its positions and the
// keys it receives from each rank.
#pragma once

#include <string>

#include "plan/sequence_cut.h"

namespace metroplex::draw {

struct SequencePicture {
  plan::DocumentLengths documents;
  std::string title;  // kind and slack
  plan::SequenceCut cut;
};

// Keys received from other ranks: only visible keys, and all keys of the sequence.
struct KeyTraffic {
  int64_t seen = 0, all = 0;  // positions, summed over readers
};
KeyTraffic key_traffic(const plan::SequenceCut& cut, const std::vector<std::vector<plan::PositionRuns>>& seen);

// `columns` is the width of the sequence bar. '#' marks a column whose positions all belong to the rank, '+' a
// partial one. '|' in the first row marks a document start. Ends with a newline.
std::string draw_text(const SequencePicture& picture, int columns);
// Returns a complete SVG document, about 1,000 units wide.
std::string draw_svg(const SequencePicture& picture);

}  // namespace metroplex::draw

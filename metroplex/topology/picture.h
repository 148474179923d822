// What a picture of the rank map shows, before it becomes text or SVG: rows of cells, with the middle of long rows
// and of long lists of rows left out.
#pragma once

#include <string>
#include <vector>

#include "topology/draw.h"

namespace metroplex::topology {

struct PictureCell {
  int rank;                 // -1: ranks are left out here
  int group = 0;            // number of its group in the coloured kind
  std::string title;        // "13 #6", with '*' for the marked rank
  std::string coordinates;  // "t1 d0 p3": axes above 1
};

struct PictureRow {
  std::string label;               // "node 0", "stage 1", or how many rows are left out
  std::vector<PictureCell> cells;  // empty where rows are left out
};

struct Picture {
  std::string title;
  std::string legend;
  std::vector<PictureRow> rows;
  size_t label_width = 0;
  size_t cell_width = 0;
};

// Throws when the options name a rank outside the world or too few rows or columns (3 at least).
Picture make_picture(const RankGrid& grid, const DrawOptions& options);

}  // namespace metroplex::topology

// The rank map and the pipeline schedule of a run, as SVG.
#pragma once

#include <string>
#include <vector>

#include "page/run_file.h"

namespace metroplex::page {

struct Figure {
  std::string title, caption;  // the caption may be empty
  std::string svg;
};

// Returns no pictures for a run without a line "run", and none that its configuration does not permit.
std::vector<Figure> draw_layout(const RunData& run);

}  // namespace metroplex::page

// Pictures of a replayed table: lines of text for a terminal, and SVG. One row a pp rank, time from left to right,
// one box a forward, backward or weight action with its microbatch in it; chunks differ by letter and shade.
#pragma once

#include <functional>
#include <string>

#include "plan/timeline.h"

namespace metroplex::plan {

struct DrawOptions {
  bool color = false;     // ANSI colours; without them forward is '.', backward '=', weight '~'
  int max_columns = 160;  // of the bars; a longer timeline gets narrower boxes, and labels fall away
  int line_columns = 0;   // of a row with what stands beside the bars, which keep at least 10; 0: no limit
};

// What boxes and the ends of rows say instead of microbatches and bubbles.
struct DrawLabels {
  std::function<std::string(size_t rank, const Action& action)> box;
  std::function<std::string(size_t rank)> row_end;
  size_t widest = 1;   // letters of a box
  std::string legend;  // "a box: ..."
};

// Ends with a newline. Rows, then the bubble and the live activations of each rank, then a legend.
std::string draw_text(const PipelineTable& table, const Timeline& timeline, const DrawOptions& options);
// Rows and legend alone, with labels of one's own.
std::string draw_text(const PipelineTable& table, const Timeline& timeline, const DrawOptions& options,
                      const DrawLabels& labels);

// A whole SVG document, about 1,000 units wide.
std::string draw_svg(const PipelineTable& table, const Timeline& timeline);

}  // namespace metroplex::plan

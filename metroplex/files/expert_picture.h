// Pictures of an expert trace, for a terminal and as SVG: heat maps of layers (or of one layer's iterations) by
// experts, of layers by iterations, of layers by the ranks that hold the experts. A cell's heat is its load over the
// mean of its row.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "files/expert_load.h"
#include "files/expert_trace.h"

namespace metroplex::files {

enum class Ink {
  plain,   // letters
  blocks,  // of Unicode
  colour   // ANSI
};

struct ExpertPictureOptions {
  Ink ink = Ink::plain;
  int columns = 100;                      // of a line; cells that find no room are drawn together, by their mean
  std::optional<int64_t> layer = {};      // its iterations instead of all layers; a global number
  std::optional<int64_t> iteration = {};  // this one alone instead of all together
};

struct Heat {
  struct Row {
    std::string label, remark;
    std::vector<double> cells;
  };
  std::string title, remarks;  // remarks: heading of what stands behind the rows
  std::string cell;            // what a cell is: "expert"
  std::vector<Row> rows;
};

// Throws base::Error("config") for a layer or an iteration that the trace has not, and where it has none at all.
std::vector<Heat> expert_heats(const ExpertTrace& trace, const ExpertPictureOptions& options);

// Ends with a newline.
std::string draw_text(const ExpertTrace& trace, const ExpertPictureOptions& options);
// A whole SVG document, about 1,000 units wide.
std::string draw_svg(const ExpertTrace& trace, const ExpertPictureOptions& options);

// The steps that the options leave. Throws as expert_heats().
std::vector<const ExpertTraceStep*> chosen_steps(const ExpertTrace& trace, const ExpertPictureOptions& options);
// Of one layer (an index of head.layers), summed over `steps`: by expert, and what was dropped.
std::vector<int64_t> tokens_of_layer(const ExpertTrace& trace, const std::vector<const ExpertTraceStep*>& steps,
                                     size_t layer);
// Of its experts, and of the `ep` ranks that they are dealt to.
Imbalance imbalance_of_layer(const ExpertTrace& trace, const std::vector<const ExpertTraceStep*>& steps,
                             size_t layer);
Imbalance imbalance_of_layer_ranks(const ExpertTrace& trace, const std::vector<const ExpertTraceStep*>& steps,
                                   size_t layer);
int64_t dropped_of_layer(const std::vector<const ExpertTraceStep*>& steps, size_t layer);

}  // namespace metroplex::files

// Pictures of an expert trace, for a terminal and as SVG: heat maps of layers (or of one layer's iterations) by
// experts, of layers by iterations, of layers by the ranks that hold the experts. A cell's heat is its load over the
// mean of its row.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "files/expert_trace.h"

namespace metroplex::files {

// What is said of the load of a layer's experts: numbers from counts.

// Of the tokens of each expert. p10: the smallest count that a tenth of the experts do not exceed; p50, p90 likewise.
struct LoadQuantiles {
  int64_t min = 0, p10 = 0, p50 = 0, p90 = 0, max = 0;
};
LoadQuantiles quantiles(std::vector<int64_t> tokens);  // of at least one expert

// Largest over mean; 1 where there is nothing.
double imbalance(const std::vector<int64_t>& tokens);

// Largest over mean, of several steps. The load of a step may be far more uneven than that of many together.
struct Imbalance {
  double together = 1;  // of the sums over the steps
  double mean = 1;      // of the single steps, their mean
  double worst = 1;     // of the single steps, the largest
};
Imbalance imbalance_of_steps(const std::vector<std::vector<int64_t>>& steps);  // at least one, equally long

// Of each of `ep` ranks: the tokens of its experts, [r E / ep, (r + 1) E / ep).
std::vector<int64_t> tokens_of_ranks(const std::vector<int64_t>& tokens, int64_t ep);

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

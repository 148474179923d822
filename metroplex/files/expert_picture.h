// Heat maps of an expert trace for terminal and SVG: layers (or iterations of one layer) by experts, layers by
// iterations, layers by expert-parallel ranks. The heat of a cell is its load divided by the mean of its row.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "files/expert_trace.h"

namespace metroplex::files {

// Quantiles over the tokens of each expert. p10 is the smallest count that at least a tenth of the experts do not
// exceed; p50 and p90 likewise.
struct LoadQuantiles {
  int64_t min = 0, p10 = 0, p50 = 0, p90 = 0, max = 0;
};
LoadQuantiles quantiles(std::vector<int64_t> tokens);  // requires at least one expert

// Returns maximum / mean, or 1 if the sum is 0.
double imbalance(const std::vector<int64_t>& tokens);

// Maximum / mean over several steps. Single steps may be much more uneven than their sum.
struct Imbalance {
  double together = 1;  // of the sums over the steps
  double mean = 1;      // mean over single steps
  double worst = 1;     // maximum over single steps
};
Imbalance imbalance_of_steps(
    const std::vector<std::vector<int64_t>>& steps);  // at least one step, all of equal length

// Returns, for each of `ep` ranks, the tokens of its experts [r E / ep, (r + 1) E / ep).
std::vector<int64_t> tokens_of_ranks(const std::vector<int64_t>& tokens, int64_t ep);

enum class Ink {
  plain,   // ASCII characters
  blocks,  // Unicode blocks
  colour   // ANSI
};

struct ExpertPictureOptions {
  Ink ink = Ink::plain;
  int columns = 100;                      // line width; if cells do not fit, adjacent ones are averaged
  std::optional<int64_t> layer = {};      // its iterations instead of all layers; a global layer index
  std::optional<int64_t> iteration = {};  // only this iteration instead of the sum over all
};

struct Heat {
  struct Row {
    std::string label, remark;
    std::vector<double> cells;
  };
  std::string title, remarks;  // remarks: heading of the texts after the rows
  std::string cell;            // meaning of a cell: "expert"
  std::vector<Row> rows;
};

// Throws base::Error("config") for a layer or iteration that the trace does not have, or for an empty trace.
std::vector<Heat> expert_heats(const ExpertTrace& trace, const ExpertPictureOptions& options);

// The text ends with a newline.
std::string draw_text(const ExpertTrace& trace, const ExpertPictureOptions& options);
// Returns a complete SVG document, about 1,000 units wide.
std::string draw_svg(const ExpertTrace& trace, const ExpertPictureOptions& options);

// Returns the steps selected by the options. Throws like expert_heats().
std::vector<const ExpertTraceStep*> chosen_steps(const ExpertTrace& trace, const ExpertPictureOptions& options);
// Tokens by expert of one layer (an index of head.layers), summed over `steps`. dropped_of_layer returns the dropped
// tokens.
std::vector<int64_t> tokens_of_layer(const ExpertTrace& trace, const std::vector<const ExpertTraceStep*>& steps,
                                     size_t layer);
// Imbalance over the experts of a layer, and over the `ep` ranks that hold them.
Imbalance imbalance_of_layer(const ExpertTrace& trace, const std::vector<const ExpertTraceStep*>& steps,
                             size_t layer);
Imbalance imbalance_of_layer_ranks(const ExpertTrace& trace, const std::vector<const ExpertTraceStep*>& steps,
                                   size_t layer);
int64_t dropped_of_layer(const std::vector<const ExpertTraceStep*>& steps, size_t layer);

}  // namespace metroplex::files

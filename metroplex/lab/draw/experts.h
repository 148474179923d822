// Heat maps of an expert trace for terminal and SVG: layers (or iterations of one layer) by experts, layers by
// iterations, layers by expert-parallel ranks. The heat of a cell is its load divided by the mean of its row.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "files/expert_load.h"
#include "files/expert_trace.h"

namespace metroplex::draw {

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
std::vector<Heat> expert_heats(const files::ExpertTrace& trace, const ExpertPictureOptions& options);

// The text ends with a newline.
std::string draw_text(const files::ExpertTrace& trace, const ExpertPictureOptions& options);
// Returns a complete SVG document, about 1,000 units wide.
std::string draw_svg(const files::ExpertTrace& trace, const ExpertPictureOptions& options);

// Returns the steps selected by the options. Throws like expert_heats().
std::vector<const files::ExpertTraceStep*> select_steps(const files::ExpertTrace& trace,
                                                        const ExpertPictureOptions& options);
// Returns the tokens per expert of one layer (an index of head.layers), summed over `steps`. dropped_of_layer
// returns the dropped tokens.
std::vector<int64_t> tokens_of_layer(const files::ExpertTrace& trace,
                                     const std::vector<const files::ExpertTraceStep*>& steps, size_t layer);
// Imbalance over the experts of a layer, and over the `ep` ranks that hold them.
files::Imbalance imbalance_of_layer(const files::ExpertTrace& trace,
                                    const std::vector<const files::ExpertTraceStep*>& steps, size_t layer);
files::Imbalance imbalance_of_layer_ranks(const files::ExpertTrace& trace,
                                          const std::vector<const files::ExpertTraceStep*>& steps, size_t layer);
int64_t dropped_of_layer(const std::vector<const files::ExpertTraceStep*>& steps, size_t layer);

}  // namespace metroplex::draw

// Pictures of a replayed table: lines of text for a terminal, and SVG. One row a pp rank, time from left to right,
// one box a forward, backward or weight action with its microbatch in it; chunks differ by letter and shade.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "plan/graph_plan.h"
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

// The graph instances (graph_plan.h) as text: which instance each pass uses over time, and the totals of every rank
// next to Megatron's.

// Of one pipeline rank.
struct GraphNumbers {
  int layers = 0;                  // captured, of all its chunks
  int instances = 0;               // ours
  int64_t graphs = 0;              // ours: passes x layers x instances in which their chunk runs
  int64_t megatron_graphs = 0;     // passes x layers x microbatches; of one pipeline rank, of one microbatch
  int64_t bound = 0;               // passes x layers x pp
  int megatron_sets = 0;           // of one layer each
  int megatron_sets_in_turns = 0;  // the same where the layers of a backward and of the next forward alternate
  GraphBytes bytes;
  int64_t megatron_inputs = 0;  // bytes, of layers whose inputs have one size
  int64_t megatron_stores = 0;  // bytes of all layers with experts, of the passes that are live at a time
};

// tensors: of the layers, by signature. megatron_stores: bytes of Megatron's store of a layer, by signature; 0 where
// there is none.
GraphNumbers graph_numbers(const GraphPlan& plan, const PipelineTable& table, int pp_rank, const GraphLayers& layers,
                           const std::map<int, GraphTensors>& tensors,
                           const std::map<int, int64_t>& megatron_stores = {});
// layer_bytes: of each layer's input, and of its result; no two share a tensor.
GraphNumbers graph_numbers(const GraphPlan& plan, const PipelineTable& table, int pp_rank, const GraphLayers& layers,
                           int64_t layer_bytes);

// plans, numbers: one a pipeline rank. Ends with a newline.
std::string draw_graphs(const PipelineTable& table, const Timeline& timeline, const std::vector<GraphPlan>& plans,
                        const std::vector<GraphNumbers>& numbers, const DrawOptions& options);

}  // namespace metroplex::plan

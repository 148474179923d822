// Draws a replayed table as terminal text or as SVG. Each row is a pp rank, time runs from left to right. Each
// forward, backward or weight action is a box with its microbatch. Chunks differ in letter and shade.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "plan/graph_plan.h"
#include "replay/timeline.h"

namespace metroplex::draw {

struct ScheduleOptions {
  bool color = false;     // ANSI colors; without them forward is '.', backward '=', weight '~'
  int max_columns = 160;  // of the bars; a longer timeline gets narrower boxes and omits labels
  int line_columns = 0;   // of a full row including text; the bars keep at least 10; 0: no limit
};

// Texts that replace microbatches in boxes and bubbles at row ends.
struct DrawLabels {
  std::function<std::string(size_t rank, const plan::Action& action)> box;
  std::function<std::string(size_t rank)> row_end;
  size_t widest = 1;   // characters in a box
  std::string legend;  // "a box: ..."
};

// Returns the rows, then the bubble and the live activations of each rank, then a legend. Ends with a newline.
std::string draw_text(const plan::PipelineTable& table, const replay::Timeline& timeline,
                      const ScheduleOptions& options);
std::string draw_text(const plan::PipelineTable& table, const replay::Timeline& timeline,
                      const ScheduleOptions& options, const DrawLabels& labels);

// Returns a complete SVG document, about 1,000 units wide.
std::string draw_svg(const plan::PipelineTable& table, const replay::Timeline& timeline);

// Graph instances (graph_plan.h) as text: the instance that each pass uses over time, and the totals of every rank
// compared with Megatron's.

// Counts for one pipeline rank. Unless marked as Megatron's, they are those of this implementation.
struct GraphNumbers {
  int layers = 0;  // captured, over all chunks
  int instances = 0;
  int64_t graphs = 0;              // passes x layers x instances of their chunk
  int64_t megatron_graphs = 0;     // passes x layers x microbatches; one microbatch for a single pipeline rank
  int64_t bound = 0;               // passes x layers x pp
  int megatron_sets = 0;           // of one layer each
  int megatron_sets_in_turns = 0;  // the same, if layers of a backward and of the next forward alternate
  plan::GraphBytes bytes;
  int64_t megatron_inputs = 0;  // bytes, for layers whose inputs have equal sizes
  int64_t megatron_stores = 0;  // bytes of all MoE layers, for the passes that are live at a time
};

// `tensors` is keyed by layer signature. `megatron_stores` holds the bytes of Megatron's store of a layer by
// signature; a missing signature has none.
GraphNumbers graph_numbers(const plan::GraphPlan& plan, const plan::PipelineTable& table, int pp_rank,
                           const plan::GraphLayers& layers, const std::map<int, plan::GraphTensors>& tensors,
                           const std::map<int, int64_t>& megatron_stores = {});
// `layer_bytes` is the size of each layer's input and of its result. No two layers share a tensor.
GraphNumbers graph_numbers(const plan::GraphPlan& plan, const plan::PipelineTable& table, int pp_rank,
                           const plan::GraphLayers& layers, int64_t layer_bytes);

// `plans` and `numbers` have one entry per pipeline rank. The text ends with a newline.
std::string draw_graphs(const plan::PipelineTable& table, const replay::Timeline& timeline,
                        const std::vector<plan::GraphPlan>& plans, const std::vector<GraphNumbers>& numbers,
                        const ScheduleOptions& options);

}  // namespace metroplex::draw

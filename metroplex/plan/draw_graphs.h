// The live sets of captured graphs (graph_plan.h) as text: which set each pass uses, over time, and what the sets of
// every rank come to beside Megatron's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/draw.h"
#include "plan/graph_plan.h"

namespace metroplex::plan {

// Of one pipeline rank.
struct GraphNumbers {
  int layers = 0;                  // captured, of all its chunks
  std::vector<int> sets_of_chunk;  // ours
  int64_t graphs = 0;              // ours: passes x layers x sets
  int64_t megatron_graphs = 0;     // passes x layers x microbatches; of one pipeline rank, of one microbatch
  int64_t bound = 0;               // passes x layers x pp
  int megatron_sets = 0;           // one layer's each
  int megatron_sets_in_turns = 0;  // the same where layers of a backward and of the next forward run in turns
  GraphBytes bytes;
  int64_t megatron_inputs = 0;  // bytes
};

// layer_bytes: of one layer's input, for all of one signature.
GraphNumbers graph_numbers(const GraphPlan& plan, const PipelineTable& table, int pp_rank, const GraphLayers& layers,
                           int64_t layer_bytes);

// plans, numbers: one a pipeline rank. Ends with a newline.
std::string draw_graphs(const PipelineTable& table, const Timeline& timeline, const std::vector<GraphPlan>& plans,
                        const std::vector<GraphNumbers>& numbers, const DrawOptions& options);

}  // namespace metroplex::plan

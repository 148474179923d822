// Checks without a GPU whether what a run captures can be captured: a few steps of training and of evaluation on
// synthetic data, captured anew each time (cuda/graph/checked_graphs.h). Findings name the segment and the operator
// that a replay would get wrong. Checked are the parts of layers that the run names (train.cuda_graph_impl: local,
// transformer_engine), or the whole step (full_iteration) with two numbers of microbatches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/graph/checked_graphs.h"
#include "train/assemble.h"

namespace metroplex::train {

struct GraphCheck {
  std::vector<cuda::Finding> findings;  // of this rank
  cuda::RankCalls calls;                // for cuda::compare_calls
  size_t training = 0, evaluation = 0;  // operations of the graphs
};

struct GraphCheckOptions {
  cuda::CheckedGraphs::Way way = cuda::CheckedGraphs::Way::compared;  // guarded: on one rank
  int64_t captures = 2;  // of each of the two, and number of microbatches
};

// The config for it: the same run without files, on made-up tokens.
config::Config graph_check_config(config::Config config);

// Collective, on the CPU. `config` is resolved and checked for world.size() ranks.
GraphCheck check_graphs(const config::Config& config, const comm::World& world, int64_t vocab_size,
                        const GraphCheckOptions& options = {}, const StageBuilder& build = models::build_stage);

// What a rank has captured, as lines for the log.

// The number of graphs captured so far.
int64_t captured_graphs(const Assembly& assembly);
// Of this rank: number, operations, memory, and what was predicted of the pool. Nothing where nothing captures.
std::vector<std::string> graph_lines(const Assembly& assembly, int64_t num_microbatches);

// What of this rank's stages is captured, a line a chunk, from the first segment to the last: "[...]" are segments of
// one graph, "4 x (...)" blocks that are alike. Nothing where no parts of layers are.
std::vector<std::string> scope_lines(const Assembly& assembly);

}  // namespace metroplex::train

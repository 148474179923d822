// Checks on the CPU whether the step can be captured as CUDA graphs. Runs a few training and evaluation steps on
// synthetic data and captures each one anew (cuda/graph/checked_graphs.h). Each diagnostic names the segment and the
// operator that a replay would compute wrongly. Checks the configured parts of layers (train.cuda_graph_impl: local,
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
  cuda::CheckedGraphs::Way way = cuda::CheckedGraphs::Way::compared;  // guarded: single rank only
  int64_t captures = 2;  // of training and of evaluation, and for each number of microbatches
};

// The config for the check: the same run with synthetic tokens and without files.
config::Config graph_check_config(config::Config config);

// Collective, on the CPU. `config` must be resolved and checked for world.size() ranks.
GraphCheck check_graphs(const config::Config& config, const comm::World& world, int64_t vocab_size,
                        const GraphCheckOptions& options = {}, const StageBuilder& build = models::build_stage);

int64_t captured_graphs(const Assembly& assembly);
// Reports number, operations and memory of this rank's graphs, and the predicted pool size. Empty without graphs.
std::vector<std::string> graph_lines(const Assembly& assembly, int64_t num_microbatches);

// Reports the captured segments of this rank's stages, one line per chunk, from the first segment to the last.
// "[...]" encloses the segments of one graph; "4 x (...)" stands for equal blocks. Empty without partial graphs.
std::vector<std::string> scope_lines(const Assembly& assembly);

}  // namespace metroplex::train

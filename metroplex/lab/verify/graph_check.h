// Checks on the CPU whether the step can be captured as CUDA graphs. Runs a few training and evaluation steps on
// synthetic data and captures each one anew (tape_check/checked_graphs.h). Each diagnostic names the segment and the
// operator that a replay would compute wrongly. Checks the configured parts of layers (train.cuda_graph_impl: local,
// transformer_engine), or the whole step (full_iteration) with two numbers of microbatches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tape_check/checked_graphs.h"
#include "step/assemble.h"

namespace metroplex::verify {

struct GraphCheck {
  std::vector<tape_check::Finding> findings;  // of this rank
  tape_check::RankCalls calls;                // for tape_check::compare_calls
  size_t training = 0, evaluation = 0;        // operations of the graphs
};

struct GraphCheckOptions {
  tape_check::CheckedGraphs::Way way = tape_check::CheckedGraphs::Way::compared;  // guarded: single rank only
  int64_t captures = 2;  // of training and of evaluation, and for each number of microbatches
};

// The config for the check: the same run with synthetic tokens and without files.
config::Config graph_check_config(config::Config config);

// Collective, on the CPU. `config` must be resolved and checked for world.size() ranks.
GraphCheck check_graphs(const config::Config& config, const comm::World& world, int64_t vocab_size,
                        const GraphCheckOptions& options = {}, const step::StageBuilder& build = models::build_stage);

}  // namespace metroplex::verify

// A whole pipeline schedule as data: for each pp rank the list of its actions, in order. Built by schedules/,
// proven by verify.h, executed by pipeline/, replayed by timeline.h, drawn by draw.h.
//
// Stages are numbered along the model: chunk c of pp rank r is stage c * num_stages + r. The first stage takes the
// batch, the last one makes the loss; every other border is crossed by explicit send and recv actions, except when
// one rank holds all the chunks (num_stages == 1): then the neighbours pass tensors by hand and no p2p appears.
#pragma once

#include <string>
#include <vector>

#include "plan/action.h"

namespace metroplex::plan {

struct PipelineTable {
  int num_stages = 1;        // pipeline-parallel ranks, pp
  int num_chunks = 1;        // model chunks a rank holds, vpp
  int num_microbatches = 1;  // of one step, per data-parallel rank
  std::vector<std::vector<Action>> ranks;
  std::string name;
  bool forward_only = false;  // evaluation: no backward, no gradient p2p
  // Per rank, the (microbatch, chunk) forwards that the builder promises to hold at most; empty: no promise.
  std::vector<int> live_activation_bounds;

  int num_model_stages() const { return num_stages * num_chunks; }
  int stage_of(int rank, int chunk) const { return chunk * num_stages + rank; }
  int rank_of_stage(int stage) const { return stage % num_stages; }
  bool is_first_stage(int rank, int chunk) const { return rank == 0 && chunk == 0; }
  bool is_last_stage(int rank, int chunk) const { return rank == num_stages - 1 && chunk == num_chunks - 1; }
  int next_rank(int rank) const { return (rank + 1) % num_stages; }
  int previous_rank(int rank) const { return (rank + num_stages - 1) % num_stages; }

  bool operator==(const PipelineTable&) const = default;
};

}  // namespace metroplex::plan

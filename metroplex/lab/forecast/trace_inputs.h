// Inputs of a traced step: the actions of one rank without peers, and its largest microbatch.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/world.h"
#include "nn/microbatch.h"
#include "plan/pipeline_table.h"
#include "step/process_context.h"
#include "forecast/trace.h"

namespace metroplex::forecast {

// Allocation sizes are multiples of it: on a GPU, PyTorch's caching allocator has blocks of 512 bytes.
int64_t block_bytes(at::Device device);

// Schedules one microbatch at a time on this rank: forward through all its chunks, then backward. Uses the sends and
// receives of a real table. Outputs are freed after their backward pass, so that no free falls into another action's
// trace. Outputs in a pool are freed earlier, because a real run has dropped them before the backward pass is
// captured.
struct OwnActions {
  int num_microbatches = 1;
  bool forward_only = false;
  bool splits_backward = false;           // weight gradients are separate actions
  std::vector<bool> output_in_pool = {};  // [chunk]; empty: no output is in a pool
};

plan::PipelineTable own_actions(const step::ProcessContext& process, const OwnActions& form);

// Returns this rank's rows of a microbatch, for the largest memory use. With a token slack, every rank gets the
// maximum number of rows. With hybrid context parallelism, the rank shares the longest document and holds as many of
// its tokens as allowed. The document is split over the fewest ranks.
nn::Microbatch largest_batch(const RankRequest& request, const comm::World& world);

}  // namespace metroplex::forecast

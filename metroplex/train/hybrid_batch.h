// Hybrid context parallelism: from the samples of a global batch to the microbatches of this rank, by the plan that
// every rank makes (plan/hybrid_context.h).
#pragma once

#include <cstdint>
#include <vector>

#include "comm/world.h"
#include "config/config.h"
#include "nn/microbatch.h"
#include "plan/hybrid_context.h"
#include "train/sequence_part.h"

namespace metroplex::train {

struct HybridParts {
  plan::HybridRequest request;
  int rank = 0;       // among those of dp x cp
  SequenceParts cut;  // of every microbatch; ranks and rank are those of the microbatch
};
HybridParts hybrid_parts(const config::Config& config, int64_t vocab_size, const comm::Group& dp_cp);

// What a query and a key that it sees cost where a token costs 1, by the FLOPs of the model (plan/model_flops.h),
// with all positions before it in the window.
double pair_cost(const config::Config& config, int64_t vocab_size);

// The groups of 1, 2, 4, ... neighbours among dp_cp that this rank is in; layers are made with them. Collective over
// dp_cp.
std::vector<comm::Group> hybrid_groups(const comm::World& world);

// `samples`: all of the global batch, whole, one each, on the host. In the order in which the ranks run them.
std::vector<nn::Microbatch> hybrid_batches(const std::vector<nn::Microbatch>& samples, const HybridParts& parts);

}  // namespace metroplex::train

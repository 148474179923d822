// Hybrid context parallelism: converts the samples of a global batch into the microbatches of this rank. Every rank
// computes the same plan (plan/hybrid_context.h).
#pragma once

#include <cstdint>
#include <vector>

#include "comm/world.h"
#include "config/config.h"
#include "nn/microbatch.h"
#include "plan/hybrid_context.h"
#include "step/sequence_part.h"

namespace metroplex::step {

struct HybridSharding {
  plan::HybridRequest request;
  int rank = 0;               // index in dp x cp
  SequenceSharding sharding;  // split of every microbatch; its ranks and rank are set per microbatch
};
HybridSharding hybrid_sharding(const config::Config& config, int64_t vocab_size, const comm::Group& dp_cp);

// Cost of one query-key pair relative to the cost of one token, from the model's FLOPs (plan/model_flops.h). Assumes
// that the attention window covers all previous positions.
double pair_cost(const config::Config& config, int64_t vocab_size);

// Returns this rank's groups of 1, 2, 4, ... adjacent ranks of dp_cp, which the layers use. Collective over dp_cp.
std::vector<comm::Group> hybrid_groups(const comm::World& world);

// Returns this rank's microbatches in execution order. `samples`: the whole global batch on the host, one sample
// each.
std::vector<nn::Microbatch> hybrid_batches(const std::vector<nn::Microbatch>& samples, const HybridSharding& parts);

}  // namespace metroplex::step

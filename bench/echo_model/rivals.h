// Row placements of other systems, reimplemented from their publications, for comparisons with replica plans on the
// same counts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "echo_model/cost.h"

namespace metroplex::bench {

// EPLB (github.com/deepseek-ai/EPLB): heavy experts are replicated, then replicas are packed onto ranks.
struct EplbSizes {
  int replicas = 0, groups = 1, nodes = 1, ranks = 1;
};
// Returns the expert of each replica, [replicas] by rank, for weights [experts]. Groups of experts stay on a node if
// the nodes divide them; else placement is global, as in EPLB.
std::vector<int32_t> eplb_replicas(std::span<const float> weights, const EplbSizes& sizes);

// Places rows by an EPLB placement: each source distributes an expert's rows evenly to its replicas. The optimizer
// state is with the first replica of an expert; `persistent` has the other replicas.
EchoPlacement eplb_placement(const plan::EchoCounts& counts, std::span<const int32_t> replicas);
// Returns the copies between two placements: replicas that are new on their rank, from the expert's first replica.
std::vector<EchoCopy> eplb_moves(std::span<const int32_t> before, std::span<const int32_t> after, int ranks);
// Returns each rank's local experts, padded with empty slots (-1) to `replicas`.
std::vector<int32_t> eplb_start(const plan::EchoSizes& sizes, int replicas);

// FasterMoE (PPoPP'22), as in fmoe/fastermoe/shadow_policy.py. The largest experts by rows are broadcast to all ranks
// while the time of the largest remaining expert plus all shadows decreases.
std::vector<int32_t> select_shadows(const plan::EchoCounts& counts, const EchoLayer& layer, double flops,
                                    double bandwidth);
EchoPlacement shadow_placement(const plan::EchoCounts& counts, std::span<const int32_t> experts);

// LLEP (arXiv:2601.17111), algorithms 2 and 3. Experts in descending order of rows stay on their owner up to `factor`
// times the mean load. The excess goes to the least loaded ranks in chunks of at least `min_rows`.
struct LlepOptions {
  double factor = 1;
  int64_t min_rows = 1024;
  double threshold = 1.3;  // at a lower imbalance (largest load / mean) all rows stay on their owner
};
struct LlepChunk {
  int32_t expert = 0, rank = 0;
  int64_t rows = 0;
  bool operator==(const LlepChunk&) const = default;
};
// In the order of an expert's rows, by source rank.
std::vector<LlepChunk> llep_chunks(std::span<const int64_t> expert_rows, int ranks, const LlepOptions& options);
EchoPlacement llep_placement(const plan::EchoCounts& counts, const LlepOptions& options = {});

}  // namespace metroplex::bench

// How other systems share the rows of experts out, restated from what they publish, so that plans of clones can be
// held against them on the same counts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "echo_model/cost.h"

namespace metroplex::bench {

// EPLB (github.com/deepseek-ai/EPLB): heavy experts are replicated, then replicas packed to ranks.
struct EplbSizes {
  int replicas = 0, groups = 1, nodes = 1, ranks = 1;
};
// The expert of each replica, [replicas] by rank, for weights [experts]. Groups of experts stay on a node where the
// nodes divide them; else placement is global, as theirs is.
std::vector<int32_t> eplb_replicas(std::span<const float> weights, const EplbSizes& sizes);

// Rows by such a placement: each source deals an expert's rows to its replicas in turn. The first replica of an
// expert is where its optimizer is; `kept` are the others.
EchoPlacement eplb_placement(const plan::EchoCounts& counts, std::span<const int32_t> replicas);
// What moves from one placement to the next: replicas that their rank did not hold, from the expert's first.
std::vector<EchoCopy> eplb_moves(std::span<const int32_t> before, std::span<const int32_t> after, int ranks);
// Each rank's home experts, and as many empty places (-1) as make `replicas`.
std::vector<int32_t> eplb_start(const plan::EchoSizes& sizes, int replicas);

// FasterMoE (PPoPP'22), as in fmoe/fastermoe/shadow_policy.py: by rows, the largest experts come to all ranks for as
// long as the time of the largest one left, with what all shadows take, shrinks.
std::vector<int32_t> shadowed_experts(const plan::EchoCounts& counts, const EchoLayer& layer, double flops,
                                      double bandwidth);
EchoPlacement shadow_placement(const plan::EchoCounts& counts, std::span<const int32_t> experts);

// LLEP (arXiv:2601.17111), algorithms 2 and 3: experts by rows, largest first, stay at home up to `factor` times the
// mean load; what is over goes to the least loaded ranks, in pieces of `min_rows` or more.
struct LlepOptions {
  double factor = 1;
  int64_t min_rows = 1024;
  double threshold = 1.3;  // a smaller largest load / mean leaves all at home
};
struct LlepPiece {
  int32_t expert = 0, rank = 0;
  int64_t rows = 0;
  bool operator==(const LlepPiece&) const = default;
};
// In the order of an expert's rows, source after source.
std::vector<LlepPiece> llep_pieces(std::span<const int64_t> expert_rows, int ranks, const LlepOptions& options);
EchoPlacement llep_placement(const plan::EchoCounts& counts, const LlepOptions& options = {});

}  // namespace metroplex::bench

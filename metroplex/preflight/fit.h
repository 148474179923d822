// Whether a configuration fits: what its ranks are predicted to hold at most, beside the memory domains where
// they compute. A memory domain is a GPU, or a machine whose memory its ranks share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "train/predict.h"

namespace metroplex::preflight {

struct MemoryDomains {
  bool gpu = false;
  int64_t ranks_each = 1;        // consecutive ranks that share a domain; the last domain may have fewer
  std::optional<int64_t> bytes;  // that each domain has; none: not known
  std::string from;              // who says so, for messages: "/proc/meminfo"
  std::optional<int64_t> only;   // look at the domain of this rank alone; none: at all domains
};

struct FitRequest {
  config::Config config;  // resolved and checked for world_size ranks
  int world_size = 1;
  int64_t vocab_size = 0;  // unpadded
  MemoryDomains domains;
};

// One of the ranks that were asked for.
struct RankFigures {
  int rank = 0, pp = 0;
  bool last = false;     // of the ranks that share optimizer state
  bool between = false;  // neither the first nor the last of them
  train::RankPrediction prediction;
  int64_t peak = 0;  // bytes in its domain: on a GPU without what lies in host memory
};

// Ranks of one pipeline rank differ by what their sharding leaves them. Of up to kAskedOfEach each is asked for; of
// more the two ends, and a rank in between counts as the smaller of them: padding between parameters, which is what
// it may hold more, is little there.
inline constexpr int64_t kAskedOfEach = 8;
struct Fit {
  // pp ascending, of each the first and, where state is shared, the last; before it one in between that was asked for
  // and holds more than both.
  std::vector<RankFigures> ranks;
  size_t worst = 0;                      // into ranks: the largest peak
  int64_t need = 0;                      // bytes of the fullest domain
  int64_t domain = 0, domain_ranks = 1;  // which domain that is, and how many ranks it has
  std::optional<int64_t> have;

  const RankFigures& worst_rank() const { return ranks[worst]; }
  // False only where it cannot: what is not known fits.
  bool fits() const { return !have || need <= *have; }
};

// Asks `predict` at most kAskedOfEach times a pipeline rank, whatever the number of ranks.
Fit fit(const FitRequest& request, const train::Predictor& predict = train::predict_rank);

// Microbatches of a data-parallel rank in the largest step of the run.
int64_t most_microbatches(const config::Config& config, int world_size);

// The figures of one rank.
RankFigures figures_of(const FitRequest& request, int rank, const train::Predictor& predict);

}  // namespace metroplex::preflight

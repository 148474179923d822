// Checks whether a configuration fits in memory: the predicted peak of its ranks against the size of their memory
// domains. A memory domain is a GPU, or a machine whose memory its ranks share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "forecast/predict.h"

namespace metroplex::forecast {

struct MemoryDomains {
  bool gpu = false;
  int64_t ranks_each = 1;        // consecutive ranks that share a domain; the last domain may have fewer
  std::optional<int64_t> bytes;  // size of each domain; nullopt: unknown
  std::string from;              // source of the size, for messages: "/proc/meminfo"
  std::optional<int64_t> only;   // check only the domain of this rank; nullopt: all domains
};

struct FitRequest {
  config::Config config;  // resolved and checked for world_size ranks
  int world_size = 1;
  int64_t vocab_size = 0;  // without padding
  MemoryDomains domains;
  int capability = 0;  // as RankRequest::capability

  RankRequest of_rank(int rank, int64_t num_microbatches) const;
};

// Returns the request with these settings ("memory.recompute_granularity=full"); nullopt if they violate the config
// rules.
std::optional<FitRequest> with_settings(const FitRequest& request, const std::vector<std::string>& settings);

struct RankFigures {
  int rank = 0, pp = 0;
  bool last = false;     // the last rank of its shard group
  bool between = false;  // neither the first nor the last rank of its shard group
  RankPrediction prediction;
  int64_t peak = 0;  // bytes in its domain; on a GPU without host memory
};

// Ranks of one pipeline rank differ by their shards. In a shard group of at most kMaxPredicted ranks, all are
// predicted. In a larger group, only both ends are predicted, and every other rank is assumed to equal the smaller
// end. The error is padding between parameters, which is small in large groups.
inline constexpr int64_t kMaxPredicted = 8;
struct Fit {
  // Predicted ranks in order of pp; for each pp the first rank and, with sharding, the last one. If a rank between
  // them holds more than both, it precedes the last one.
  std::vector<RankFigures> ranks;
  size_t worst = 0;                      // index into ranks of the largest peak
  int64_t need = 0;                      // bytes of the fullest domain
  int64_t domain = 0, domain_ranks = 1;  // index of that domain, and its number of ranks
  std::optional<int64_t> have;

  const RankFigures& worst_rank() const { return ranks[worst]; }
  // True if the size of the domain is unknown.
  bool fits() const { return !have || need <= *have; }
};

// Calls `predict` at most kMaxPredicted times per pipeline rank.
Fit fit(const FitRequest& request, const Predictor& predict = predict_rank);

// Microbatches per data-parallel rank in the largest step of the run.
int64_t max_microbatches(const config::Config& config, int world_size);

RankFigures predict_figures(const FitRequest& request, int rank, const Predictor& predict);

}  // namespace metroplex::forecast

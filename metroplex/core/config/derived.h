// Resolves keys that are 0 or auto, one function each. resolved() (validate.h) stores the results. The rules, and
// code that runs before resolved(), call these functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/config.h"

namespace metroplex::config {

// Returns model.ffn_hidden_size, or 4h, or int(8h/3/64)*64 with gated_linear_unit (0 for very small h).
int64_t ffn_width(const Model& model);
// Returns the model chunks of a pipeline rank, from the layout string if there is one.
int64_t virtual_stages(const Parallel& parallel);
// Returns parallel.pipeline_schedule, or for auto: none for one stage, 1f1b for one chunk per rank, else interleaved.
Schedule schedule(const Parallel& parallel);
// True if weight gradients are separate actions of the pipeline schedule.
bool splits_backward(const Parallel& parallel);
// The numbers of parallel.pipeline_times. Returns nullopt unless they are valid.
struct PipelineTimes {
  double forward = 1, backward = 1, weight = 1, p2p = 0;
  std::vector<double> rank_factors = {};  // one per pipeline rank, or empty
};
std::optional<PipelineTimes> read_pipeline_times(const Parallel& parallel);
// The same, but throws base::Error("config").
PipelineTimes pipeline_times(const Parallel& parallel);
// Returns the words of parallel.cp_comm_type: one for all layers, or one per layer. Throws base::Error("config") for
// an unknown word.
std::vector<CpCommType> cp_comm_types(const Parallel& parallel);
// Returns the numbers of parallel.hierarchical_context_parallel_sizes, empty if the key is empty. The first is the
// number of ranks that exchange tokens for heads. Returns nullopt unless the text is a list of numbers >= 1.
std::optional<std::vector<int64_t>> read_context_levels(const Parallel& parallel);
// The same, but throws base::Error("config").
std::vector<int64_t> context_levels(const Parallel& parallel);
// Returns the divisor of the number of tokens per context-parallel rank: tp with sequence parallelism.
int64_t context_multiple(const Parallel& parallel);
// Returns the maximum tokens of a sequence per context-parallel rank (parallel.context_parallel_token_slack).
int64_t most_context_tokens(const Config& config);
// Returns the group sizes of hybrid context parallelism: powers of two that divide dp x cp.
std::vector<int> hybrid_context_sizes(int64_t ranks);
// Returns the maximum tokens of a microbatch per rank with hybrid context parallelism, a multiple of
// context_multiple. It follows from parallel.max_seqlen_per_dp_cp_rank, or from seq_length / cp if that key is 0.
int64_t most_hybrid_tokens(const Config& config);
// Default of parallel.ddp_bucket_size: max(40M, 1M * dp) elements, as in Megatron.
int64_t default_bucket_size(int64_t dp);

}  // namespace metroplex::config

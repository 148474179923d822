// What a key left at 0 or auto stands for, one function each; resolved() (validate.h) writes it out; the rules, and
// code that sees a configuration before that, call these.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/config.h"

namespace metroplex::config {

// model.ffn_hidden_size, or 4h, or int(8h/3/64)*64 with gated_linear_unit (which is 0 for very small h).
int64_t ffn_width(const Model& model);
// Model chunks a pipeline rank holds: counted in the layout string when there is one.
int64_t virtual_stages(const Parallel& parallel);
// parallel.pipeline_schedule, or the plainest that fits: none for one stage, 1f1b for one chunk a rank, interleaved
// for several.
Schedule schedule(const Parallel& parallel);
// The words of parallel.cp_comm_type: one for all layers, or one for each. Throws base::Error("config") for a word
// that is none of the table.
std::vector<CpCommType> cp_comm_types(const Parallel& parallel);
// The numbers of parallel.hierarchical_context_parallel_sizes, the first that of ranks that exchange tokens for
// heads; none where it is empty. Nothing for a text that is no list of numbers from 1 up.
std::optional<std::vector<int64_t>> read_context_levels(const Parallel& parallel);
// The same; throws base::Error("config").
std::vector<int64_t> context_levels(const Parallel& parallel);
// Of tokens that a context-parallel rank holds, what their number must be a multiple of: tp with sequence
// parallelism.
int64_t context_multiple(const Parallel& parallel);
// The most tokens of a sequence that a context-parallel rank holds, by parallel.context_parallel_token_slack.
int64_t most_context_tokens(const Config& config);
// The sizes of the groups of hybrid context parallelism: powers of two that divide the ranks of dp x cp.
std::vector<int> hybrid_context_sizes(int64_t ranks);
// The most tokens that a rank holds of a microbatch with hybrid context parallelism, a multiple of context_multiple:
// parallel.max_seqlen_per_dp_cp_rank, or what it would hold without.
int64_t most_hybrid_tokens(const Config& config);
// parallel.ddp_bucket_size where it is 0: max(40M, 1M * dp) elements, as Megatron has it.
int64_t default_bucket_size(int64_t dp);

}  // namespace metroplex::config

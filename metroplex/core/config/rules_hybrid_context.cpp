// Rules for hybrid context parallelism: group sizes per document, and settings that require equal numbers of
// microbatches on all ranks.
#include "config/rules.h"

#include <algorithm>

#include "config/derived.h"
#include "config/experts.h"

namespace metroplex::config {

using base::concat;

namespace {

constexpr const char* kHybrid = "parallel.hybrid_context_parallel";
constexpr const char* kMostTokens = "parallel.max_seqlen_per_dp_cp_rank";

// The plan requires documents of single samples.
void check_hybrid_documents(Rules& rules) {
  const Config& config = rules.config;
  rules.require(config.data.reset_attention_mask, kHybrid, "true",
                "gives every document its own number of ranks, but without data.reset_attention_mask every sample is "
                "one document of the same length",
                "set data.reset_attention_mask, or turn it off");
  rules.require(config.train.micro_batch_size == 1, kHybrid, "true",
                concat("forms microbatches from documents of single samples, not ",
                       key_is("train.micro_batch_size", config.train.micro_batch_size)),
                "set micro_batch_size to 1");
  rules.require(config.data.dataloader_type == Dataloader::single, kHybrid, "true",
                "needs all ranks to read the whole global batch in the order of the data, but data.dataloader_type = "
                "cyclic gives each rank its own order",
                "set dataloader_type to single");
  rules.require(config.parallel.context_parallel_cut != SequenceCutKind::zigzag, kHybrid, "true",
                "distributes documents of any length, but parallel.context_parallel_cut = zigzag needs multiples of "
                "twice the ranks",
                "set context_parallel_cut to balanced");
  rules.require(
      config.parallel.context_parallel_token_slack == 0, "parallel.context_parallel_token_slack",
      config.parallel.context_parallel_token_slack,
      concat("is not for parallel.hybrid_context_parallel, where ", kMostTokens, " sets the tokens per rank"),
      "leave it out");
}

void check_hybrid_sizes(Rules& rules) {
  const Parallel& parallel = rules.config.parallel;
  if (rules.dp == 0) return;
  const int64_t ranks = rules.dp * parallel.cp(), multiple = context_multiple(parallel),
                seq = rules.config.train.seq_length;
  const std::vector<int> sizes = hybrid_context_sizes(ranks);
  rules.require(sizes.size() > 1, kHybrid, "true",
                concat("shares documents between 2, 4, ... of the dp * cp = ", ranks, " ranks, an odd number"),
                "choose other sizes, or turn it off");
  const int64_t most = most_hybrid_tokens(rules.config);
  rules.require(most >= multiple, kMostTokens, parallel.max_seqlen_per_dp_cp_rank,
                concat("must be ", multiple, " or more, a token for each tensor-parallel rank"), "raise it");
  if (most < multiple) return;
  const bool fits =
      std::any_of(sizes.begin(), sizes.end(), [&](int size) { return size * multiple <= seq && size * most >= seq; });
  rules.require(fits, kMostTokens, parallel.max_seqlen_per_dp_cp_rank,
                concat("is too small for a document of ", key_is("train.seq_length", seq), " tokens on ",
                       sizes.back(), " ranks, the largest power of two that divides dp * cp = ", ranks),
                concat("raise it to ", (seq + sizes.back() - 1) / sizes.back(), " or more"));
}

// Rejects settings that require equal numbers or lengths of microbatches on all ranks.
void check_hybrid_neighbours(Rules& rules) {
  const Config& config = rules.config;
  const Parallel& parallel = config.parallel;
  const std::string differ = "gives ranks different numbers of microbatches, but ";
  rules.require(parallel.pp() == 1, kHybrid, "true",
                concat(differ, "the stages of ", key_is("parallel.pipeline_model_parallel_size", parallel.pp()),
                       " exchange the same microbatches in one order"),
                "set pipeline_model_parallel_size to 1, or turn it off");
  const Choice<ShardingStrategy> strategy = parallel.data_parallel_sharding_strategy;
  rules.require(
      strategy == ShardingStrategy::no_shard || strategy == ShardingStrategy::optim, kHybrid, "true",
      concat(differ, "parallel.data_parallel_sharding_strategy = ", strategy, " reduces or gathers in each"),
      "set the strategy to optim or no_shard");
  const Choice<CudaGraphImpl> graphs = rules.captured_by();
  rules.require(
      graphs == CudaGraphImpl::none, kHybrid, "true",
      concat("makes microbatches of any length, but train.cuda_graph_impl = ", graphs, " captures one length"),
      rules.or_no_graphs("turn it off"));
  rules.require(!config.model.has_experts(), kHybrid, "true",
                concat(differ, key_is("model.num_moe_experts", config.model.num_moe_experts),
                       " are balanced and exchanged by all ranks in each"),
                "leave the experts out, or turn it off");
  const std::vector<std::string> words = comma_list(parallel.cp_comm_type);
  rules.require(std::find(words.begin(), words.end(), text_of(CpCommType::a2a_p2p)) == words.end(),
                "parallel.cp_comm_type", parallel.cp_comm_type,
                "needs groups of one size, but with parallel.hybrid_context_parallel their sizes differ",
                "choose p2p, all_gather or a2a");
  rules.require(!config.memory.distribute_saved_activations || config.model.hidden_size % parallel.tp() == 0, kHybrid,
                "true",
                "makes microbatches of any length, but memory.distribute_saved_activations shards them evenly over "
                "the tensor-parallel ranks",
                "turn one of the two off");
}

}  // namespace

void check_hybrid_context(Rules& rules) {
  const Parallel& parallel = rules.config.parallel;
  if (!parallel.hybrid_context_parallel) {
    rules.require_effect(parallel.max_seqlen_per_dp_cp_rank == 0, kMostTokens, parallel.max_seqlen_per_dp_cp_rank,
                         concat("has no effect without ", kHybrid), "leave it out, or turn that on");
    return;
  }
  check_hybrid_documents(rules);
  check_hybrid_sizes(rules);
  check_hybrid_neighbours(rules);
}

}  // namespace metroplex::config

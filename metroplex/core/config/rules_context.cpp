// Rules for context parallelism: divisible lengths and supported exchanges.
#include "config/rules.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "config/derived.h"
#include "config/experts.h"

namespace metroplex::config {

using base::concat;

namespace {

constexpr const char* kSize = "parallel.context_parallel_size";
constexpr const char* kLevels = "parallel.hierarchical_context_parallel_sizes";
constexpr const char* kSlack = "parallel.context_parallel_token_slack";
constexpr const char* kAreaSlack = "parallel.context_parallel_area_slack";
constexpr const char* kExchange = "parallel.cp_comm_type";

void check_lengths_of_parts(Rules& rules) {
  const Parallel& parallel = rules.config.parallel;
  const int64_t seq = rules.config.train.seq_length, cp = parallel.cp(), multiple = context_multiple(parallel);
  rules.require(seq % (cp * multiple) == 0, "train.seq_length", seq,
                concat("must be a multiple of ", cp * multiple, ", ", key_is(kSize, cp),
                       multiple == 1 ? ""
                                     : " times " + key_is("parallel.tensor_model_parallel_size", multiple) +
                                           " with parallel.sequence_parallel",
                       ": every rank holds the same number of tokens"),
                "choose another length or other sizes");
  rules.require(parallel.context_parallel_cut != SequenceCutKind::zigzag || seq % (2 * cp) == 0, "train.seq_length",
                seq,
                concat("must be a multiple of ", 2 * cp, ", twice ", key_is(kSize, cp),
                       ", with parallel.context_parallel_cut = zigzag"),
                "choose another length, or parallel.context_parallel_cut = balanced");
}

// Checks layers with exchange `word`, in which `ranks` ranks share the heads.
void check_heads(Rules& rules, const std::string& word, int64_t ranks) {
  const Model& m = rules.config.model;
  const Parallel& parallel = rules.config.parallel;
  const int64_t tp = parallel.tp(), heads = m.num_attention_heads / tp,
                groups = (m.num_query_groups > 0 ? m.num_query_groups : m.num_attention_heads) / tp;
  const std::string here = concat("with parallel.cp_comm_type = ", word, " ", ranks, " ranks share the ");
  rules.require(heads % ranks == 0, "model.num_attention_heads", m.num_attention_heads,
                concat(here, heads, " heads of a tensor-parallel rank, but ", ranks, " does not divide them"),
                "choose p2p or all_gather, or a smaller context_parallel_size");
  rules.require(groups == 0 || groups % ranks == 0 || ranks % groups == 0, "model.num_query_groups",
                m.num_query_groups,
                concat(here, groups, " query groups of a tensor-parallel rank: one must be a multiple of the other"),
                "choose p2p or all_gather, or another context_parallel_size");
}

// Returns the number of ranks that share heads with a2a+p2p; 0 if the sizes are rejected.
int64_t check_levels(Rules& rules, bool used) {
  const Parallel& parallel = rules.config.parallel;
  const std::string& text = parallel.hierarchical_context_parallel_sizes;
  const auto refuse = [&](const std::string& rule, const std::string& fix) {
    rules.require(false, kLevels, text, rule, fix);
    return int64_t{0};
  };
  if (text.empty() && !used) return 0;
  const auto sizes = read_context_levels(parallel);
  if (!used) {
    refuse("has no effect: no layer uses a2a+p2p", "leave it out, or set parallel.cp_comm_type");
    // Megatron rejects other products in any case.
    rules.list.back().without_effect =
        sizes && sizes->size() <= 3 &&
        std::accumulate(sizes->begin(), sizes->end(), int64_t{1}, std::multiplies<>()) == parallel.cp();
    return 0;
  }
  if (!sizes || sizes->size() != 2)
    return refuse(
        "parallel.cp_comm_type = a2a+p2p needs two numbers of at least 1 separated by a comma",
        "give the ranks that share heads and the number of such groups, such as 4,2 for context_parallel_size 8");
  if ((*sizes)[0] * (*sizes)[1] != parallel.cp())
    return refuse(concat("multiply to ", (*sizes)[0] * (*sizes)[1], ", not to ", key_is(kSize, parallel.cp())),
                  "choose sizes whose product is context_parallel_size");
  return (*sizes)[0];
}

std::vector<int64_t> group_sizes(const Rules& rules) {
  const Parallel& parallel = rules.config.parallel;
  if (!parallel.hybrid_context_parallel || rules.dp == 0) return {parallel.cp()};
  const std::vector<int> sizes = hybrid_context_sizes(rules.dp * parallel.cp());
  return {sizes.begin(), sizes.end()};
}

void check_exchanges(Rules& rules) {
  const Parallel& parallel = rules.config.parallel;
  const int64_t layers = rules.config.model.num_layers;
  const std::vector<std::string> words = comma_list(parallel.cp_comm_type);
  const auto count = static_cast<int64_t>(words.size());
  rules.require(
      count == 1 || count == layers, kExchange, parallel.cp_comm_type,
      concat("has ", count, " words: one for all layers, or one for each of ", key_is("model.num_layers", layers)),
      "write one word, or one for each layer");
  for (const std::string& word : words) {
    rules.require(value_of<CpCommType>(word).has_value(), kExchange, word, "must be p2p, all_gather, a2a or a2a+p2p",
                  "choose one of them");
  }
  const auto used = [&](CpCommType type) {
    return std::find(words.begin(), words.end(), text_of(type)) != words.end();
  };
  const std::vector<int64_t> sizes = group_sizes(rules);
  for (const int64_t size : sizes) {
    const size_t before = rules.list.size();
    if (used(CpCommType::a2a)) check_heads(rules, "a2a", size);
    if (rules.list.size() > before) break;
  }
  const int64_t ranks = check_levels(rules, used(CpCommType::a2a_p2p));
  if (ranks > 0) check_heads(rules, "a2a+p2p", ranks);
}

// A replay sends the same rows as its capture.
void check_graphs(Rules& rules) {
  const Parallel& parallel = rules.config.parallel;
  const Choice<CudaGraphImpl> graphs = rules.captured_by();
  if (graphs == CudaGraphImpl::none || !rules.config.data.reset_attention_mask) return;
  const std::vector<std::string> words = comma_list(parallel.cp_comm_type);
  const bool heads_only = std::all_of(words.begin(), words.end(),
                                      [](const std::string& word) { return word == text_of(CpCommType::a2a); });
  rules.require(
      heads_only, "train.cuda_graph_impl", graphs,
      concat("captures fixed messages, but with data.reset_attention_mask the documents of each step decide "
             "which keys parallel.cp_comm_type = ",
             parallel.cp_comm_type, " sends"),
      rules.or_no_graphs("set cp_comm_type to a2a"));
  rules.require(
      parallel.context_parallel_cut != SequenceCutKind::balanced, "train.cuda_graph_impl", graphs,
      "captures one distribution of rows for all steps, but with parallel.context_parallel_cut = balanced and "
      "data.reset_attention_mask the documents of each step decide which rows a rank holds",
      rules.or_no_graphs("set context_parallel_cut to zigzag"));
}

// Ranks may hold different numbers of tokens: rejects settings that require equal numbers.
void check_slack(Rules& rules) {
  const Parallel& parallel = rules.config.parallel;
  const Model& m = rules.config.model;
  const double slack = parallel.context_parallel_token_slack, area = parallel.context_parallel_area_slack;
  rules.require(
      area == Parallel().context_parallel_area_slack || parallel.context_parallel_cut == SequenceCutKind::balanced,
      kAreaSlack, area, concat("has no effect with parallel.context_parallel_cut = ", parallel.context_parallel_cut),
      "leave it out, or set context_parallel_cut to balanced");
  if (slack == 0) return;
  rules.require(parallel.context_parallel_cut == SequenceCutKind::balanced, kSlack, slack,
                concat("has no effect with parallel.context_parallel_cut = ", parallel.context_parallel_cut),
                "leave it out, or set context_parallel_cut to balanced");
  const Choice<CudaGraphImpl> graphs = rules.captured_by();
  rules.require(
      graphs == CudaGraphImpl::none, kSlack, slack,
      concat("lets microbatches differ in length, but train.cuda_graph_impl = ", graphs, " captures one length"),
      rules.or_no_graphs("set it to 0"));
  rules.require(!rules.config.memory.distribute_saved_activations ||
                    rules.config.train.micro_batch_size * m.hidden_size % parallel.tp() == 0,
                kSlack, slack,
                "lets ranks differ in tokens, but memory.distribute_saved_activations shards them evenly over the "
                "tensor-parallel ranks",
                "set it to 0, or turn distribute_saved_activations off");
  if (!m.has_experts()) return;
  rules.require(!m.moe_enable_echo, kSlack, slack,
                "lets ranks differ in tokens, but model.moe_enable_echo balances them",
                "set it to 0, or turn ECHO off");
  const TokenDispatcher dispatcher = token_dispatcher(m, parallel.etp() * parallel.ep());
  rules.require(dispatcher == TokenDispatcher::alltoall || dispatcher == TokenDispatcher::local, kSlack, slack,
                concat("lets ranks differ in tokens, but model.moe_token_dispatcher_type = ", text_of(dispatcher),
                       " needs the same number on each"),
                "set it to 0, or the dispatcher to alltoall");
  rules.require(
      m.moe_expert_capacity_factor == 0, kSlack, slack,
      "lets ranks differ in tokens, so with model.moe_expert_capacity_factor an expert's capacity would differ too",
      "set it to 0, or leave the capacity out");
}

}  // namespace

void check_context_parallel(Rules& rules) {
  const Parallel& parallel = rules.config.parallel;
  check_hybrid_context(rules);
  if (parallel.hybrid_context_parallel) return check_exchanges(rules);
  if (parallel.cp() == 1) {
    rules.require(parallel.hierarchical_context_parallel_sizes.empty(), kLevels,
                  parallel.hierarchical_context_parallel_sizes, concat("has no effect with ", key_is(kSize, 1)),
                  "leave it out, or set context_parallel_size");
    rules.require(parallel.context_parallel_token_slack == 0, kSlack, parallel.context_parallel_token_slack,
                  concat("has no effect with ", key_is(kSize, 1)), "leave it out, or set context_parallel_size");
    return;
  }
  check_slack(rules);
  check_lengths_of_parts(rules);
  check_exchanges(rules);
  check_graphs(rules);
}

}  // namespace metroplex::config

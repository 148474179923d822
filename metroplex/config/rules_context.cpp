// Rules about context parallelism: lengths that can be cut, and exchanges that a layer can make.
#include <algorithm>

#include "config/derived.h"
#include "config/experts.h"
#include "config/rules.h"

namespace metroplex::config {

using base::concat;

namespace {

constexpr const char* kSize = "parallel.context_parallel_size";
constexpr const char* kExchange = "parallel.cp_comm_type";

void check_lengths_of_parts(Rules& rules) {
  const Parallel& p = rules.config.parallel;
  const int64_t seq = rules.config.train.seq_length, cp = p.cp(), multiple = context_multiple(p);
  rules.require(seq % (cp * multiple) == 0, "train.seq_length", seq,
                concat("must be a multiple of ", cp * multiple, ", ", key_is(kSize, cp),
                       multiple == 1 ? ""
                                     : " times " + key_is("parallel.tensor_model_parallel_size", multiple) +
                                           " with parallel.sequence_parallel",
                       ": every rank holds as many tokens"),
                "choose another length or other sizes");
  rules.require(p.context_parallel_cut != SequenceCutKind::zigzag || seq % (2 * cp) == 0, "train.seq_length", seq,
                concat("must be a multiple of ", 2 * cp, ", twice ", key_is(kSize, cp),
                       ", with parallel.context_parallel_cut = zigzag"),
                "choose another length, or parallel.context_parallel_cut = balanced");
}

void check_heads(Rules& rules) {
  const Model& m = rules.config.model;
  const Parallel& p = rules.config.parallel;
  const int64_t tp = p.tp(), cp = p.cp(), heads = m.num_attention_heads / tp,
                groups = (m.num_query_groups > 0 ? m.num_query_groups : m.num_attention_heads) / tp;
  const std::string here = concat("with parallel.cp_comm_type = a2a the ", key_is(kSize, cp), " ranks share the ");
  rules.require(heads % cp == 0, "model.num_attention_heads", m.num_attention_heads,
                concat(here, heads, " heads of a tensor-parallel rank, of which ", cp, " is no divisor"),
                "choose p2p or all_gather, or a smaller context_parallel_size");
  rules.require(groups == 0 || groups % cp == 0 || cp % groups == 0, "model.num_query_groups", m.num_query_groups,
                concat(here, groups, " query groups of a tensor-parallel rank: one must be a multiple of the other"),
                "choose p2p or all_gather, or another context_parallel_size");
}

void check_exchanges(Rules& rules) {
  const Parallel& p = rules.config.parallel;
  const int64_t layers = rules.config.model.num_layers;
  const std::vector<std::string> words = comma_list(p.cp_comm_type);
  const auto count = static_cast<int64_t>(words.size());
  rules.require(
      count == 1 || count == layers, kExchange, p.cp_comm_type,
      concat("has ", count, " words: one for all layers, or one for each of ", key_is("model.num_layers", layers)),
      "write one word, or one for each layer");
  for (const std::string& word : words) {
    const bool hierarchical = word == "a2a+p2p";
    rules.require(!hierarchical, kExchange, word, "is not there yet: no hierarchical exchange is built",
                  "use a2a or p2p");
    rules.require(hierarchical || value_of<CpCommType>(word).has_value(), kExchange, word,
                  "must be p2p, all_gather or a2a", "choose one of them");
  }
  if (std::find(words.begin(), words.end(), text_of(CpCommType::a2a)) != words.end()) check_heads(rules);
}

}  // namespace

void check_context_parallel(Rules& rules) {
  const Parallel& p = rules.config.parallel;
  if (p.cp() == 1) return;
  check_lengths_of_parts(rules);
  check_exchanges(rules);
  const Choice<CudaGraphImpl> graphs = rules.config.train.cuda_graph_impl;
  rules.require(graphs == CudaGraphImpl::none || rules.use != Use::training, "train.cuda_graph_impl", graphs,
                "captures no exchange of keys and values yet, and " + key_is(kSize, p.cp()),
                "set it to none, or context_parallel_size to 1");
}

}  // namespace metroplex::config

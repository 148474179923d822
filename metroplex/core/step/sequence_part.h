// Selects the rows of each sample that a context-parallel rank holds, by a split planned from the documents
// (plan/sequence_cut.h).
#pragma once

#include <vector>

#include "comm/group.h"
#include "config/parallel.h"
#include "nn/microbatch.h"
#include "plan/sequence_cut.h"

namespace metroplex::step {

struct SequenceSharding {
  int ranks = 1, rank = 0;
  config::SequenceCutKind kind = config::SequenceCutKind::zigzag;
  int64_t multiple = 1;                       // row count of every rank is a multiple of this
  int neighbours = 1;                         // ranks per a2a group of a2a+p2p
  double token_slack = 0, area_slack = 0.02;  // of the balanced split
  bool lists = true;                          // with documents, list the visible keys; a2a needs no list
};
SequenceSharding sequence_sharding(const config::Parallel& parallel, const comm::Group& cp);

// Returns tokens, labels, loss_mask and position_ids of this rank's rows. Documents and the mask sum describe the
// whole sequence; with documents, visible keys are listed. All ranks get the same number of rows, up to token_slack.
// `whole` must be on the host or on the meta device. On meta it counts as one document with all keys visible. With
// one rank, returns `whole`.
nn::Microbatch shard_sequence(const nn::Microbatch& whole, const SequenceSharding& parts);

// The same for some positions of one sample, in ascending order: whole documents and fillers (plan/hybrid_context.h).
// Only keys of these positions are visible. With one rank in `parts`, it holds all of them.
nn::Microbatch shard_documents(const nn::Microbatch& whole, const std::vector<plan::PositionRun>& pieces,
                               const SequenceSharding& parts);

// Document lengths of each sample, on the host. Without documents, or on the meta device: one document of all tokens.
plan::DocumentLengths document_lengths(const nn::Microbatch& batch);

}  // namespace metroplex::step

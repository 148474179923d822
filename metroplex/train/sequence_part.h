// The part of a microbatch that a context-parallel rank has: its rows of each sample, as a cut says that is planned
// from the documents (plan/sequence_cut.h).
#pragma once

#include <vector>

#include "comm/group.h"
#include "config/parallel.h"
#include "nn/microbatch.h"
#include "plan/sequence_cut.h"

namespace metroplex::train {

// How sequences are cut, and for whom.
struct SequenceParts {
  int ranks = 1, rank = 0;
  config::SequenceCutKind kind = config::SequenceCutKind::zigzag;
  int64_t multiple = 1;                       // of the rows of every rank
  int neighbours = 1;                         // the ranks of a group of a2a+p2p
  double token_slack = 0, area_slack = 0.02;  // of the balanced cut
  bool lists = true;  // with documents a microbatch lists which keys are seen; a2a asks for none
};
SequenceParts sequence_parts(const config::Parallel& parallel, const comm::Group& cp);

// tokens, labels, loss_mask and position_ids of the rank's rows; the documents and the sum of the mask of the whole
// sequence; with documents, which keys are seen. All ranks get as many rows, but for the slack. `whole` on the host,
// or on the meta device, where it is taken for one document and all keys for seen; for one rank it is the result.
nn::Microbatch part_of(const nn::Microbatch& whole, const SequenceParts& parts);

// The same of some positions of one sample: whole documents and what fills them up (plan/hybrid_context.h),
// ascending. Only keys of these are seen. With one rank in `parts` all of them are its rows.
nn::Microbatch part_of_pieces(const nn::Microbatch& whole, const std::vector<plan::PositionRun>& pieces,
                              const SequenceParts& parts);

// Of each sample, on the host; on the meta device, and without documents, one of all tokens.
plan::DocumentLengths document_lengths(const nn::Microbatch& batch);

}  // namespace metroplex::train

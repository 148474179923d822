// Which rows of an attention block (attention_blocks.h) see each other where attention stays inside documents, as the
// offsets of Microbatch::document_offsets cut to the block. The device works them out; their number is known before
// any document is, and no larger than the block needs, because flash attention's backward takes memory for each.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "nn/attention_blocks.h"
#include "nn/core_attention.h"
#include "nn/fused_attention.h"

namespace metroplex::nn {

// For how many documents, of all samples together, a causal block with rows at `positions` has room. It is enough
// where documents have at least 128 tokens, or, where there is room for more in a sample, at least an even share of
// its length: of such documents a run of positions has parts of one for each so many tokens, and of one more. It is
// never more than the microbatch has room for.
int64_t document_room(const Microbatch& batch, const std::vector<RowRun>& positions);

struct BlockDocuments {
  DocumentRows rows;
  // [b, 1, queries] bool: those of another document than the first query, which see none of these keys whatever the
  // rows say. Undefined: `rows` say it.
  at::Tensor hidden;
};

// `ordered` are all positions in order, for device and host. Nothing where a causal block has more documents than
// there is room for. Where batch.document_runs are not known it has room for all.
//
// Of any other block the keys lie before the queries, and so only the document of the first query can have both: each
// sample has keys before that document, the document, and queries behind it. A window, which counts from the last
// query and the last key, bears documents without their first keys but not without their last queries: these are
// `hidden`.
std::optional<BlockDocuments> block_documents(const Microbatch& batch, const AttentionBlock& block,
                                              const CorePositions& ordered);

}  // namespace metroplex::nn

// Computes which rows of an attention block (attention_blocks.h) see each other if attention stays inside documents.
// The result restricts BatchDocuments::offsets to the block and is computed on the device. Its size must be
// fixed on the host in advance. It is kept small because flash attention's backward allocates memory for each
// document.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "nn/attention_blocks.h"
#include "nn/core_attention.h"
#include "nn/fused_attention.h"

namespace metroplex::nn {

// Returns the number of documents, over all samples, that the offsets of a causal block with rows at `positions` can
// hold. It is sufficient if every document has at least m tokens. m is 128 or, if smaller, the sequence length
// divided by the maximum number of documents per sample. A range of n positions then intersects at most ceil(n / m) +
// 1 documents. The result never exceeds the capacity of the microbatch.
int64_t document_capacity(const Microbatch& batch, const std::vector<IndexRange>& positions);

struct BlockDocuments {
  DocumentRows rows;
  // [b, 1, queries] bool: true for queries outside the document of the first query. They see none of the keys,
  // regardless of `rows`. If `rows` suffices, `hidden` is undefined.
  at::Tensor hidden;
};

// `ordered` has all positions in ascending order, on the device and on the host. Returns nullopt if a causal block
// has more documents than document_capacity() allows. If batch.document_runs is empty, the capacity of the microbatch
// is used instead.
//
// In a non-causal block all keys precede all queries, so only the document of the first query can contain both. Each
// sample then has three documents: keys before it, the document itself, queries after it. A window is counted from
// the last query and the last key. It tolerates documents that lack their first keys, but not documents that lack
// their last queries; such queries are marked in `hidden`.
std::optional<BlockDocuments> block_documents(const Microbatch& batch, const AttentionBlock& block,
                                              const CorePositions& ordered);

}  // namespace metroplex::nn

// Splits a causal mask, with or without a window, over arbitrary positions of queries and keys into blocks. Within a
// block the mask depends only on row numbers, because library operators do not take positions.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "nn/microbatch.h"

namespace metroplex::nn {

// Rows of queries and keys in one block. Every query sees every key; or, if `causal`, queries and keys have the same
// positions in the same order. With a window, query i does not see keys before i + keys - queries - window. The block
// then has no more queries than keys.
struct AttentionBlock {
  IndexRange queries, keys;
  bool causal = false;
  int64_t window = -1;
};

// Returns the blocks that cover each visible pair of query and key exactly once. Both lists of position ranges are
// ascending. A query sees keys at its own or earlier positions, at most `window` before its own unless `window` is
// -1. With a chunk, which excludes a window, it sees only keys of its own range [n chunk, (n + 1) chunk). The queries
// of a block either all occur in earlier blocks, or all come after the queries of those blocks.
std::vector<AttentionBlock> attention_blocks(const std::vector<IndexRange>& queries,
                                             const std::vector<IndexRange>& keys, int64_t window = -1,
                                             int64_t chunk = 0);

// Permutes rows along a dimension into the order of their positions, and back. Copies only if the order differs.
class RowOrder {
 public:
  explicit RowOrder(const std::vector<IndexRange>& positions);
  // Ranges of positions of the sorted rows; adjacent ranges are merged.
  const std::vector<IndexRange>& positions() const { return positions_; }
  at::Tensor sorted_order(const at::Tensor& x, int64_t dim = 0) const { return reorder(x, dim, input_rows_); }
  at::Tensor input_order(const at::Tensor& x, int64_t dim = 0) const { return reorder(x, dim, sorted_rows_); }

 private:
  static at::Tensor reorder(const at::Tensor& x, int64_t dim, const std::vector<IndexRange>& rows);

  std::vector<IndexRange> positions_;
  std::vector<IndexRange> input_rows_;   // input rows, in the order of their positions
  std::vector<IndexRange> sorted_rows_;  // sorted rows, in input order
};

}  // namespace metroplex::nn

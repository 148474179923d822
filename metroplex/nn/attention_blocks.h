// What a causal mask, with a window or without, leaves of queries and keys at chosen positions, in blocks whose masks
// go by rows: library operators know no positions.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "nn/microbatch.h"

namespace metroplex::nn {

// Rows of queries and of keys: each query sees each key; or, causal, both have the same positions, in order. With a
// window query i does not see keys before i + keys - queries - window, and there are no more queries than keys.
struct AttentionBlock {
  RowRun queries, keys;
  bool causal = false;
  int64_t window = -1;
};

// Positions in runs, both lists ascending. Each pair of a query and a key at or before its position, and no more than
// `window` before it where that is not -1, is seen in one block. Queries of a block have either all been in blocks
// before it in the list, or none of them, nor any behind them.
std::vector<AttentionBlock> attention_blocks(const std::vector<RowRun>& queries, const std::vector<RowRun>& keys,
                                             int64_t window = -1);

// Rows along a dimension in the order of their positions, and back: copies only where they lie otherwise.
class RowOrder {
 public:
  explicit RowOrder(const std::vector<RowRun>& positions);
  // Of the rows in order; runs that touch are one.
  const std::vector<RowRun>& positions() const { return positions_; }
  at::Tensor in_order(const at::Tensor& x, int64_t dim = 0) const { return moved(x, dim, given_); }
  at::Tensor as_given(const at::Tensor& x, int64_t dim = 0) const { return moved(x, dim, ordered_); }

 private:
  static at::Tensor moved(const at::Tensor& x, int64_t dim, const std::vector<RowRun>& rows);

  std::vector<RowRun> positions_;
  std::vector<RowRun> given_;    // rows as given, in the order of their positions
  std::vector<RowRun> ordered_;  // rows in order, as they were given
};

}  // namespace metroplex::nn

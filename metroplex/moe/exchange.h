// Rows to the ranks of their experts, directly or by way of the own node. Forward and backward are one function with
// the table of who sends what turned round.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "moe/context.h"

namespace metroplex::moe {

// Rows from each member of a group (first index) to each.
class RowTable {
 public:
  explicit RowTable(int members) : members_(members), rows_(static_cast<size_t>(members * members), 0) {}
  int members() const { return members_; }
  int64_t& at(int from, int to) { return rows_[static_cast<size_t>(from * members_ + to)]; }
  int64_t at(int from, int to) const { return rows_[static_cast<size_t>(from * members_ + to)]; }
  RowTable turned() const;
  int64_t sent(int from) const;
  int64_t received(int to) const;

 private:
  int members_;
  std::vector<int64_t> rows_;
};

// x, contiguous: rows for each member of context.experts, in their order -> rows of each. `meanwhile` (may be empty)
// runs while they are on their way. Without autograd.
using ExchangeRows = at::Tensor(const at::Tensor& x, const RowTable& table, const ExpertContext& context,
                                const std::function<void()>& meanwhile);
ExchangeRows exchange_directly;
// First inside the node, then across nodes between equal places: each message across is that of a whole node.
ExchangeRows exchange_by_node;

// Differentiable; backward goes the same way back. `context`, of two or more ranks, outlives it.
at::Tensor exchange(const at::Tensor& x, const RowTable& table, const ExpertContext& context, ExchangeRows* way,
                    const std::function<void()>& meanwhile);

}  // namespace metroplex::moe

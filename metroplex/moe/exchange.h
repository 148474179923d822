// Rows to the ranks of their experts, directly or by way of the own node. Forward and backward are one function with
// the table of who sends what turned round.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/collectives.h"
#include "moe/context.h"

namespace metroplex::moe {

// Rows from each member of a group (first index) to each.
class RowTable {
 public:
  RowTable() = default;
  explicit RowTable(int members) : members_(members), rows_(static_cast<size_t>(members * members), 0) {}
  int members() const { return members_; }
  int64_t& at(int from, int to) { return rows_[static_cast<size_t>(from * members_ + to)]; }
  int64_t at(int from, int to) const { return rows_[static_cast<size_t>(from * members_ + to)]; }
  RowTable turned() const;
  int64_t sent(int from) const;
  int64_t received(int to) const;

 private:
  int members_ = 0;
  std::vector<int64_t> rows_;
};

// How rows get from rank to rank, begun and ended apart so that other work lies between. Without autograd.
struct RowExchange {
  // x, contiguous: rows for each member of context.experts, in their order.
  comm::Exchange (*start)(const at::Tensor& x, const RowTable& table, const ExpertContext& context);
  // Rows of each member, in their order.
  at::Tensor (*finish)(comm::Exchange started, const RowTable& table, const ExpertContext& context);
};
extern const RowExchange kDirectExchange;
// First inside the node, then across nodes between equal places: each message across is that of a whole node.
extern const RowExchange kExchangeByNode;

// Rows on their way to other ranks.
class RowsUnderWay {
 public:
  RowsUnderWay() = default;
  // `context`, of two or more ranks, outlives it and the gradients of what comes.
  RowsUnderWay(const at::Tensor& x, const RowTable& table, const ExpertContext& context, const RowExchange& how);
  // What came; once. Differentiable in x: gradients go the same way back.
  at::Tensor finish();

 private:
  at::Tensor x_;
  RowTable table_;
  const ExpertContext* context_ = nullptr;
  const RowExchange* how_ = nullptr;
  comm::Exchange started_;
};

// Rows for and from the members of a group, in buffers of fixed length: how many they are is known on the device only
// (GroupBackend::exchange_rows).
struct CountedExchange {
  at::Tensor sent, came;  // [members] int64: rows for each of them, and from each
  int64_t room = 0;       // rows of the buffer for what comes
  int64_t capacity = 0;   // of one pair

  CountedExchange turned(int64_t rows) const { return {came, sent, rows, capacity}; }
};

class CountedRowsUnderWay {
 public:
  CountedRowsUnderWay() = default;
  // x [N, ...]: rows for each member in turn. `overflow` as in exchange_rows; nobody expects any: `sent` is what
  // finds room everywhere. `group` outlives it and the gradients of what comes.
  CountedRowsUnderWay(const at::Tensor& x, const CountedExchange& how, const comm::Group& group,
                      const at::Tensor& overflow);
  // [room, ...]; behind the last row unspecified. Differentiable in x: gradients go the same way back.
  at::Tensor finish();

 private:
  at::Tensor x_, out_, overflow_;
  CountedExchange how_;
  const comm::Group* group_ = nullptr;
  comm::Handle started_;
};

}  // namespace metroplex::moe
